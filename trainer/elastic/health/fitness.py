"""Whether this node can carry workers: room on the disk of the run directory, and memory. Standard library only.

A restart takes a tenth of a second: without a look at the node a disk that is full for a minute would use up all of a
job's restarts.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from pathlib import Path

from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.records.files import say

_PROBE_BYTES = 1024 * 1024
_LEAST_MEMORY_SHARE = 0.01
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LOOK_EVERY_S = 0.5
PATIENCE_S = 600.0


class Unfit(Exception):
    """The node did not recover in time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def find_full_disk(folder: Path) -> str | None:
    """Why nothing can be written to the folder; None when a megabyte can. Other trouble is left to whoever meets it.

    Without fsync: a file system says at the write that it is full, one across a network at the close.
    """
    while not os.access(folder, os.F_OK):  # a full disk may have kept it from being made
        folder = folder.parent
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}" if error.errno in _FULL else None
    finally:
        _remove(probe)
    return None


def find_want_of_memory(meminfo: str) -> str | None:
    """What /proc/meminfo says when less than a hundredth of the memory is available; None when there is more."""
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    try:
        total_kb, free_kb = int(fields["MemTotal"][0]), int(fields["MemAvailable"][0])
    except (KeyError, ValueError, IndexError):
        return None
    if free_kb >= _LEAST_MEMORY_SHARE * total_kb:
        return None
    return f"only {free_kb // 1024} of {total_kb // 1024} MB of this node's memory are available"


def await_fitness(folder: Path, patience_s: float = PATIENCE_S) -> tuple[str, float] | None:
    """Wait until the node can carry workers. What was in the way and for how many seconds; None when nothing was.

    Raises Unfit when it still is after `patience_s`.
    """
    began, first = time.monotonic(), None
    while True:
        full = find_full_disk(folder)
        obstacle = full or find_want_of_memory(_read(Path("/proc/meminfo")))
        waited_s = time.monotonic() - began
        if obstacle is None:
            return None if first is None else (first, waited_s)
        if waited_s > patience_s:
            kind = FailureKind.STORAGE if full else FailureKind.NODE
            raise Unfit(Failure(kind=kind, message=f"{obstacle}, for {waited_s:.0f} s"))
        if first is None:
            say(f"waiting, {obstacle}")
            first = obstacle
        time.sleep(_LOOK_EVERY_S)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
