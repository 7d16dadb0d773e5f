"""The file of samples of one incarnation: the newest minute in full, and older samples at even distances."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainer.contract.clock import parse_time
from trainer.contract.resource_sample import Sample, render_sample
from trainer.elastic.records.files import read_tail, write_temporary

LIMIT_BYTES = 256 * 1024
NEWEST = 30  # samples, about a minute; kept in full if they fit


class ResourceJournal:
    """Not thread-safe. The file never has more than `limit_bytes`."""

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path, self._limit_bytes = path, limit_bytes

    def append(self, sample: Sample) -> None:
        """Raises OSError."""
        line = json.dumps(render_sample(sample), separators=(",", ":")) + "\n"
        if self._size() + len(line) > self._limit_bytes:
            old = read_tail(self._path, self._limit_bytes).splitlines(keepends=True)
            kept = "".join(thin([*old, line], self._limit_bytes // 2))
            write_temporary(self._path, kept.encode()).replace(self._path)
            return
        # A worker may put a pipe here, which would block without O_NONBLOCK, or a link to another file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o644), "ab") as file:
            file.write(line.encode())

    def _size(self) -> int:
        try:
            return self._path.lstat().st_size
        except FileNotFoundError:
            return 0


def thin(lines: Sequence[str], limit_bytes: int) -> list[str]:
    """The newest lines, and of the older ones as many as fit, at even distances in time. Drops what is no sample."""
    timed = [(at_s, line) for line in lines if (at_s := _time_of(line)) is not None]
    older, newest = timed[:-NEWEST], timed[-NEWEST:]
    while newest and _size_of(newest) > limit_bytes:
        newest = newest[1:]
    distance_s = 1.0
    while older and _size_of(older) + _size_of(newest) > limit_bytes:
        older, distance_s = _apart(older, distance_s), 2 * distance_s
    return [line for _, line in (*older, *newest)]


def _apart(timed: Sequence[tuple[float, str]], distance_s: float) -> list[tuple[float, str]]:
    """Return the lines that are at least `distance_s` apart. Return none if only one line is left."""
    kept: list[tuple[float, str]] = []
    for at_s, line in timed if len(timed) > 1 else ():
        if not kept or abs(at_s - kept[-1][0]) >= distance_s:  # a clock may be set back
            kept.append((at_s, line))
    return kept


def _size_of(timed: Sequence[tuple[float, str]]) -> int:
    return sum(len(line) for _, line in timed)


def _time_of(line: str) -> float | None:
    try:
        return parse_time(json.loads(line)["at"]).timestamp()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
