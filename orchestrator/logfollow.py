"""Following logs: each poll gives the lines that came since the last one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.logfiles import LineCutter, Source, end_of_lines, open_log
from orchestrator.logs import LogRequest, Logs, Selection, matches, tail

MAX_POLL_BYTES = 1024 * 1024  # of one file in one poll
_LAST_POLLS = 256  # of an ended job: a process that it left behind may write for ever
_LOOK_EVERY = 4  # polls between two looks for new files and the job's end


@dataclass(slots=True)
class _Reading:
    """How far one file was read."""

    offset: int
    inode: int | None = None
    cutter: LineCutter = field(default_factory=LineCutter)


class Follower:
    """A stream of lines of one job. Not for several threads at once.

    Starts with the last lines and goes on through rotation, vanished files, new generations and new attempts. What a
    worker wrote between the last poll and a cut of its log is not shown, and the cut is.
    """

    def __init__(self, logs: Logs, job_id: str, request: LogRequest) -> None:
        self._logs = logs
        self._job_id = job_id
        self._request = request
        self._wanted = matches(request)
        self._readings: dict[Source, _Reading] = {}
        self._selection: Selection | None = None
        self._polls = 0
        self.ended = False

    def poll(self) -> list[str]:
        """New lines, none while there are none. Sets `ended` with the last ones. Raises NotFound, StoreUnavailable."""
        if self.ended:
            return []
        lines = self._read_all()
        if self._polls % _LOOK_EVERY == 0:
            lines.extend(self._look())
        self._polls += 1
        return lines

    def _look(self) -> list[str]:
        """Look for new files and for the job's end."""
        lines: list[str] = []
        found = self._logs.select(self._job_id, self._request)
        over = self._logs.rests(self._job_id) if found is None else found.over
        if found is not None:
            known = self._selection
            if known is not None and known.attempt != found.attempt:
                lines.extend(self._finish())
            self._selection = found
            if self._polls == 0:
                lines.extend(self._begin(found))
            for source in found.sources:
                self._readings.setdefault(source, _Reading(0))
        if over:
            lines.extend(self._finish())
            self.ended = True
        return lines

    def _begin(self, selection: Selection) -> list[str]:
        for source in selection.sources:
            file = open_log(selection.job_dir, source.path)
            if file is not None:
                with file:
                    self._readings[source] = _Reading(end_of_lines(file), os.fstat(file.fileno()).st_ino)
        ends = {source: reading.offset for source, reading in self._readings.items()}
        return tail(selection, self._request, ends=ends)

    def _finish(self) -> list[str]:
        """What is left of the selection, lines without an end included."""
        lines: list[str] = []
        for _ in range(_LAST_POLLS):
            more = self._read_all()
            if not more:
                break
            lines.extend(more)
        for source, reading in self._readings.items():
            lines.extend(self._labelled(source, reading.cutter.flush()))
        return lines

    def _read_all(self) -> list[str]:
        if self._selection is None:
            return []
        job_dir = self._selection.job_dir
        return [
            line
            for source in self._selection.sources
            for line in self._labelled(source, _read(job_dir, source, self._readings[source]))
        ]

    def _labelled(self, source: Source, lines: list[str]) -> list[str]:
        selection = self._selection
        label = source.label(selection.attempt) if selection is not None and selection.prefixed else ""
        return [label + line for line in lines if self._wanted(line)]


def _read(job_dir: Path, source: Source, reading: _Reading) -> list[str]:
    file = open_log(job_dir, source.path)
    if file is None:
        return []
    lines: list[str] = []
    with file:
        status = os.fstat(file.fileno())
        if reading.inode not in (None, status.st_ino) or status.st_size < reading.offset:
            lines.extend([*reading.cutter.flush(), f"[the log was cut here; older lines are in {source.older.name}]"])
            reading.offset = 0
        reading.inode = status.st_ino
        file.seek(reading.offset)
        block = file.read(MAX_POLL_BYTES)
    reading.offset += len(block)
    return lines + reading.cutter.feed(block)
