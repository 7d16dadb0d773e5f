"""The innermost frames of saved stacks, as written by faulthandler or py-spy. Pure."""

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
