"""Find the log files of a run directory, open them safely, and render lines that are safe to show.

A job's processes own these files, so nothing in them is trusted. Endless lines and control characters are handled here.
Paths are relative to the job's folder.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from orchestrator.domain.terminal import COLOR
from orchestrator.jobfolder.folder import MAX_ENTRIES, Folder, JobFolder, Status
from trainer.contract import layout

MAX_LINE_BYTES = 64 * 1024
BLOCK_BYTES = 64 * 1024
_MAX_UNENDED_BYTES = 16 * MAX_LINE_BYTES  # how much of an unfinished line is searched
# C0 and C1 controls except tab, and the characters that visibly reorder or break a line.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_OLDER = ".1"
_HERE = Path()  # makes the paths of `layout` relative to the job's folder
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_MOST_LOGS = 10_000  # the newest
_FEWEST_LOGS = 64  # per replica, however many replicas there are


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """One log. The agent's own log has no `local_rank`. Sorts by age."""

    generation: int
    incarnation: int
    replica: int
    local_rank: int | None
    path: Path

    def label(self, attempt: int) -> str:
        who = f"agent r{self.replica}" if self.local_rank is None else f"r{self.replica}/{self.local_rank}"
        generation = f" g{self.generation}" if self.generation else ""
        return f"[a{attempt}{generation} {who}] "

    @property
    def older(self) -> Path:
        return older_of(self.path)


def find_worker_logs(
    job: JobFolder, attempt: int, *, replica: int | None = None, local_rank: int | None = None
) -> list[Source]:
    """Find the logs of an attempt's workers, optionally of one replica or local rank, oldest first."""
    try:
        with job.open() as folder:
            return sorted(_worker_logs(folder, attempt, replica, local_rank))[-_MOST_LOGS:]
    except OSError:
        return []


def _worker_logs(folder: Folder, attempt: int, replica: int | None, local_rank: int | None) -> Iterator[Source]:
    """Yield an even share of the newest logs of each replica. A job can create too many folders to list."""
    replicas = _replicas(folder, attempt, replica)
    share = max(_FEWEST_LOGS, 2 * _MOST_LOGS // max(1, len(replicas)))
    for number in replicas:
        formations = islice(_formations(folder, layout.replica_dir(_HERE, attempt, number)), share)
        yield from islice(_logs_of(folder, number, local_rank, formations), share)


def _formations(folder: Folder, replica: Path) -> Iterator[tuple[int, int, Path] | None]:
    """Yield a replica's incarnations, generations and folders, newest first. None for an empty incarnation."""
    for incarnation, life in reversed(numbered(folder, replica, "")):
        formed = numbered(folder, life, "g")
        yield from ((incarnation, generation, path) for generation, path in reversed(formed))
        if not formed:
            yield None


def _logs_of(
    folder: Folder, replica: int, local_rank: int | None, formations: Iterator[tuple[int, int, Path] | None]
) -> Iterator[Source]:
    for found in formations:
        if found is not None:
            incarnation, generation, path = found
            for local, worker in numbered(folder, path, "local-"):
                if local_rank is None or local == local_rank:
                    yield Source(generation, incarnation, replica, local, worker / layout.WORKER_LOG)


def find_agent_logs(job: JobFolder, attempt: int, *, replica: int | None = None) -> list[Source]:
    try:
        with job.open() as folder:
            numbers = sorted(_replicas(folder, attempt, replica))
    except OSError:
        return []
    return [Source(0, 0, n, None, layout.replica_dir(_HERE, attempt, n) / layout.AGENT_LOG) for n in numbers]


def open_log(job: JobFolder, path: Path) -> BinaryIO | None:
    """Open a regular file of the job. None if it does not exist, cannot be read, or is anything else."""
    try:
        with job.open() as folder:
            return folder.open(path)
    except OSError:
        return None


def look_at_log(job: JobFolder, path: Path) -> Status | None:
    """Return a log's status. None if it does not exist or cannot be read."""
    try:
        with job.open() as folder:
            return folder.status(path)
    except OSError:
        return None


def end_of_lines(file: BinaryIO) -> int:
    """Return the offset after the last newline. The search backwards is limited."""
    position = file.seek(0, io.SEEK_END)
    least = max(0, position - _MAX_UNENDED_BYTES)
    while position > least:
        start = max(least, position - BLOCK_BYTES)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return least


def start_of_last_lines(file: BinaryIO, count: int, end: int, *, least: int = 0) -> int:
    """Return the offset of the last `count` lines before `end`, but no less than `least`. Reads blocks backwards."""
    position, missing = end, count
    while position > least:
        start = max(least, position - BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        # The newline at the end of the last line does not start another.
        limit = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while (newline := block.rfind(b"\n", 0, limit)) >= 0:
            missing -= 1
            if missing <= 0:
                return start + newline + 1
            limit = newline
        position = start
    return least


def read_lines(file: BinaryIO, start: int, end: int) -> Iterator[str]:
    """Yield the lines between two offsets, each safe to show."""
    left = end - start
    file.seek(start)
    cutter = LineCutter()
    while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
        left -= len(block)
        yield from cutter.feed(block)
    yield from cutter.flush()


class LineCutter:
    """Splits bytes into whole lines. Keeps at most `limit` bytes of each line."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self.limit = limit
        self._kept = bytearray()
        self._dropped = 0
        self._overwritten = 0

    @property
    def pending(self) -> int:
        """The number of bytes of the unfinished line."""
        return self._overwritten + len(self._kept) + self._dropped

    def feed(self, block: bytes) -> list[str]:
        *whole, rest = block.split(b"\n")
        lines = []
        for part in whole:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return lines

    def flush(self) -> list[str]:
        """Return the unfinished line, if any."""
        return [self._take()] if self._kept else []

    def _add(self, part: bytes) -> None:
        start = part.rstrip(b"\r").rfind(b"\r") + 1
        if start:  # a progress bar: only its newest text counts
            self._overwritten = self.pending + start
            self._kept.clear()
            self._dropped = 0
            part = part[start:]
        room = max(0, self.limit - len(self._kept))
        self._kept += part[:room]
        self._dropped += max(0, len(part) - room)

    def _take(self) -> str:
        mark = f" [cut: {self._dropped} more bytes]" if self._dropped else ""
        line = render_line(bytes(self._kept)) + mark
        self._kept.clear()
        self._dropped = self._overwritten = 0
        return line


def render_line(raw: bytes) -> str:
    """Render a line as text, as a terminal shows it after its last carriage return, without colors.

    Replaces bytes that are not UTF-8, and shows other control characters as \\x07.
    """
    text = COLOR.sub("", raw.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace"))
    return _UNSAFE.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _replicas(folder: Folder, attempt: int, replica: int | None) -> list[int]:
    if replica is not None:
        return [replica]
    return [number for number, _ in numbered(folder, layout.attempt_dir(_HERE, attempt), "replica-")]


def older_of(log: Path) -> Path:
    """Return the file with the older part of a log."""
    return log.with_name(log.name + _OLDER)


def numbered(folder: Folder, path: Path, prefix: str, *, limit: int = MAX_ENTRIES) -> list[tuple[int, Path]]:
    """Return the subfolders named by the prefix and a whole number. If there are too many, the highest numbers."""
    numbers = [name.removeprefix(prefix) for name in folder.folders(path, limit=limit) if name.startswith(prefix)]
    found = sorted(int(number) for number in numbers if _NUMBER.fullmatch(number))
    return [(number, path / f"{prefix}{number}") for number in found[-_MOST_LOGS:]]
