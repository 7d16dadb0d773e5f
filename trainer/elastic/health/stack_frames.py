"""Parse the stacks of faulthandler and py-spy: where a worker is, and whether it waits for other ranks.

Pure, except that it reads one source line: a handle's `wait()` is C++ and has no frame of its own.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(r"^(Current thread|Thread) (0x)?[0-9a-fA-F]+.*$", re.MULTILINE)
_FAULTHANDLER = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_PY_SPY = re.compile(r"^    (?P<function>\S.*) \((?P<file>.+):(?P<line>\d+)\)$", re.MULTILINE)
# An idle thread in these modules waits for other ranks, in a collective or in a backward pass that contains one.
_PEER_MODULES = ("torch/distributed/", "torch/autograd/", "torch/_tensor.py", "torch/nn/parallel/", "torch/cuda/")
_LOADS_DATA = ("torch/utils/data/",)
_WAIT_OF_A_HANDLE = re.compile(r"\.wait\(\s*\)|\bbarrier\(|\ball_reduce\(")
_PACKAGES = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+/|^<frozen ")


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def is_in(self, parts: Sequence[str]) -> bool:
        return any(part in self.file for part in parts)

    @property
    def is_of_a_package(self) -> bool:
        return _PACKAGES.search(self.file) is not None

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"


def parse_main_thread(text: str) -> tuple[Frame, ...]:
    """The main thread's frames, innermost first. Empty if the text has none.

    faulthandler writes the main thread last. py-spy writes it first, with its name.
    """
    starts = [match.start() for match in _THREAD.finditer(text)]
    if not starts:
        return ()
    threads = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    named = (thread for thread in threads if "MainThread" in thread.partition("\n")[0])
    pattern, thread = (_FAULTHANDLER, threads[-1]) if _FAULTHANDLER.search(text) else (_PY_SPY, next(named, threads[0]))
    return tuple(Frame(each["file"], int(each["line"]), each["function"]) for each in pattern.finditer(thread))


def waits_for_peers(stack: Sequence[Frame]) -> bool:
    """Whether an idle thread with this stack waits for other ranks."""
    if not stack:
        return False
    top = stack[0]
    return top.is_in(_PEER_MODULES) or (
        not top.is_of_a_package and _WAIT_OF_A_HANDLE.search(_source_line(top)) is not None
    )


def _source_line(frame: Frame) -> str:
    """The source line. Empty if the file is not a regular one: reading /dev/stdin would block."""
    return linecache.getline(frame.file, frame.line) if os.path.isfile(frame.file) else ""  # noqa: PTH113


def loads_data(stack: Sequence[Frame]) -> bool:
    """Whether the thread waits for a data loader. Such a thread wakes up every few seconds to check its processes."""
    return any(frame.is_in(_LOADS_DATA) for frame in stack)


def find_own_line(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, or else the innermost frame."""
    return next((frame for frame in stack if not frame.is_of_a_package), stack[0] if stack else None)
