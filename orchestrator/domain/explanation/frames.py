"""The innermost frames of saved stacks, and stacks for reading, from faulthandler or py-spy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

_MOST = 3
_THREAD = re.compile(r"(?:Current thread|Thread) ")
# Lib/faulthandler (3.11): '  File "a.py", line 3 in step'. py-spy 0.4: '    step (a.py:3)'.
_FRAMES = (
    re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.+)'),
    re.compile(r"\s+(?P<name>\S.*) \((?P<file>[^()]+):(?P<line>\d+)\)"),
)
_FAULTHANDLER = "(most recent call first)"
# The frames outside a program that the fork server runs, with those of runpy for a module, and of a function's caller.
_LAUNCHER = re.compile(
    r"(<frozen runpy>|<string>|\brunpy\.py"
    r"|\btrainer/elastic/workers/(program|forked|forkserver)\.py|\btrainer/script/function\.py)[\":]"
)
_LIBRARIES = re.compile(r"/(?:site-packages|dist-packages|lib/python[\d.]+)/|^<")


def find_innermost(lines: Sequence[str]) -> list[str]:
    """Return at most three frames of the main thread, innermost first, such as "step (train.py:3)".

    The last one is the innermost of the job's own code, unless it is among the first ones or there is none.
    """
    frames = list(_read_frames(_find_main(lines)))
    shown = frames[:_MOST]
    own = next((each for each in frames if not _LIBRARIES.search(each[1])), None)
    if own is not None and own not in shown:
        shown = [*shown[: _MOST - 1], own]
    return [f"{name} ({file.rpartition('/')[2]}:{line})" for name, file, line in shown]


def arrange_stacks(lines: Sequence[str]) -> list[str]:
    """Return one process's stacks with the main thread of each dump first, without the launcher's outermost frames.

    In a dump, faulthandler writes the main thread last, and an empty line between threads. py-spy writes it first.
    """
    dumps: list[list[list[str]]] = [[[]]]
    for line in lines:
        if _THREAD.match(line):
            before = dumps[-1][-1]
            if before and before[-1].strip():
                dumps.append([])
            dumps[-1].append([])
        dumps[-1][-1].append(line)
    arranged: list[str] = []
    for *others, last in dumps:
        threads = [last, *others] if last and _FAULTHANDLER in last[0] else [*others, last]
        for thread in filter(None, threads):
            arranged += [*([""] if arranged else []), *_drop_launcher([line for line in thread if line.strip()])]
    return arranged


def _drop_launcher(thread: Sequence[str]) -> Sequence[str]:
    """Leave out the outermost frames that are the launcher's, unless the thread has no others."""
    end = len(thread)
    while end and _LAUNCHER.search(thread[end - 1]):
        end -= 1
    return thread[:end] if end > 1 else thread


def _find_main(lines: Sequence[str]) -> Sequence[str]:
    """Return the main thread of the newest stacks. faulthandler writes it last, py-spy names it."""
    heads = [place for place, line in enumerate(lines) if _THREAD.match(line)]
    named = [place for place in heads if "MainThread" in lines[place]]
    if not heads:
        return lines
    start = (named or heads)[-1]
    return lines[start : next((place for place in heads if place > start), len(lines))]


def _read_frames(lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for line in islice(lines, 1000):
        found = next((match for pattern in _FRAMES if (match := pattern.fullmatch(line.rstrip()))), None)
        if found is not None:
            yield found["name"], found["file"], found["line"]
