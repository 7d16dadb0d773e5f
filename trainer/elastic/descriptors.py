"""File descriptors: the three standard ones, and waiting until one can be read. Standard library only."""

from __future__ import annotations

import math
import os
import select
import sys
from collections.abc import Sequence
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


End = TypeVar("End", bound="int | HasDescriptor")


def open_standard_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr. Call it before any other file is opened.

    Otherwise another file gets its number, and what a library or a worker prints would be written there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def wait_readable(ends: Sequence[End], timeout_s: float | None) -> list[End]:
    """The ends that have something to read, or are closed. Unlike select(2), it accepts descriptors above 1,023."""
    numbers = {end if isinstance(end, int) else end.fileno(): end for end in ends}
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
    return [numbers[number] for number, _ in found]


def wait_writable(number: int) -> None:
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    poll.poll()
