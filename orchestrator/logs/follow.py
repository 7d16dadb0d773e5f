"""Follow logs. Each poll returns the lines since the last one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.domain.errors import StoreUnavailable
from orchestrator.jobfolder.folder import JobFolder, status_of
from orchestrator.logs.log_files import MAX_LINE_BYTES, LineCutter, Source, end_of_lines, look_at_log, open_log
from orchestrator.logs.reader import LogRequest, Logs, Selection, matches, tail

MAX_POLL_BYTES = 1024 * 1024  # per file and poll
_ALL_POLL_BYTES = 4 * MAX_POLL_BYTES  # all files of one poll together
_ALL_POLL_LINES = 64 * 1024  # an empty line still takes memory
_ALL_UNENDED_BYTES = 8 * 1024 * 1024  # all unfinished lines together
_LEAST_BYTES, _LEAST_LINES = 1024, 16  # per file
_LAST_POLLS = 256  # after the job's end, since a leftover process may write forever
_LOOK_EVERY = 4  # polls between two checks for new files and the job's end


@dataclass(slots=True)
class _Reading:
    """How far one file was read."""

    offset: int
    inode: int | None = None
    cutter: LineCutter = field(default_factory=LineCutter)
    is_behind: bool = False  # the file had more than one read takes

    @property
    def resume_at(self) -> int:
        """The offset of the first line that was not returned yet."""
        return self.offset - self.cutter.pending

    def is_stale(self, folder: JobFolder, path: Path) -> bool:
        """Whether the file may have grown or been replaced since the last read."""
        status = look_at_log(folder, path)
        return status is not None and (status.st_ino, status.st_size) != (self.inode, self.offset)


class Follower:
    """Streams a job's lines to one Feed. Not thread-safe.

    Starts after the last whole line and continues through rotation, deleted files, new generations and new attempts.
    Lines written between the last poll and a cut of the log are lost; a line marks the cut.
    """

    def __init__(self, logs: Logs, job_id: str, request: LogRequest) -> None:
        self._logs = logs
        self._job_id = job_id
        self._request = request
        self._wanted = matches(request)
        self._readings: dict[Source, _Reading] = {}
        self._selection: Selection | None = None
        self._has_labels = False  # true once a line has a label; all later lines then have one
        self._polls = 0
        self._last_polls = _LAST_POLLS
        self._finishing = False
        self.ended = False
        self.behind = False  # there was more to read than one poll takes

    def poll(self) -> list[str]:
        """Return new lines. Sets `behind`, and `ended` with the last ones. Raises NotFound, StoreUnavailable."""
        if self.ended:
            return []
        looks = self._finishing or self._polls % _LOOK_EVERY == 0
        lines = self._read_all(thorough=looks)
        try:
            lines.extend(self._look() if looks else ())
        except StoreUnavailable:
            if not lines:
                raise
            return lines  # the next poll checks again
        self._polls += 1
        return lines

    def last_lines(self) -> Callable[[int], list[str]]:
        """Return a function that reads the last lines up to the current position, as far as they still exist."""
        selection, request = self._selection, self._request
        if selection is None:
            return lambda _: []
        ends = {source: reading.resume_at for source, reading in self._readings.items()}
        return lambda count: tail(selection, replace(request, tail=count), ends=ends)

    def _look(self) -> list[str]:
        """Check for new files and for the job's end."""
        lines: list[str] = []
        found = self._logs.select(self._job_id, self._request)
        over = self._logs.is_at_rest(self._job_id) if found is None else found.over
        if found is not None:
            known = self._selection
            if known is not None and known.attempt != found.attempt:
                lines.extend(self._finish())
                if self._finishing:
                    return lines
            if self._polls == 0:
                self._begin(found)
            for source in found.sources:
                self._readings.setdefault(source, _Reading(0))
            self._selection = found
            self._has_labels |= found.prefixed
        if over:
            lines.extend(self._finish())
            self.ended = not self._finishing
        return lines

    def _begin(self, selection: Selection) -> None:
        for source in selection.sources:
            file = open_log(selection.folder, source.path)
            if file is not None:
                with file, contextlib.suppress(OSError):
                    self._readings[source] = _Reading(end_of_lines(file), status_of(file).st_ino)

    def _finish(self) -> list[str]:
        """Return the rest of the selection, including unfinished lines.

        If that is too much for one poll, `_finishing` stays set and the next polls continue.
        """
        lines: list[str] = []
        self._finishing, size = True, 0
        while self._last_polls > 0:
            self._last_polls -= 1
            read = self._read_all(thorough=True)
            lines.extend(read)
            size += sum(map(len, read))
            if not self.behind:
                break
            if len(lines) >= _ALL_POLL_LINES or size >= _ALL_POLL_BYTES:
                return lines
        self._finishing, self._last_polls = False, _LAST_POLLS
        for source, reading in self._readings.items():
            lines.extend(self._labeled(source, reading.cutter.flush()))
        return lines

    def _read_all(self, *, thorough: bool) -> list[str]:
        """Read new lines. `thorough` also opens unchanged files: NFS may show a status that is a minute old."""
        if self._selection is None:
            return []
        folder, lines = self._selection.folder, list[str]()
        sources = self._selection.sources
        stale = [each for each in sources if thorough or self._readings[each].is_stale(folder, each.path)]
        limit = min(MAX_POLL_BYTES, max(_LEAST_BYTES, _ALL_POLL_BYTES // max(1, len(stale))))
        most = max(_LEAST_LINES, _ALL_POLL_LINES // max(1, len(stale)))
        unended = min(MAX_LINE_BYTES, max(_LEAST_BYTES, _ALL_UNENDED_BYTES // max(1, len(self._readings))))
        self.behind = False
        for source in stale:
            reading = self._readings[source]
            reading.cutter.limit = unended
            lines.extend(self._labeled(source, _read(folder, source, reading, limit, most)))
            self.behind |= reading.is_behind
        return lines

    def _labeled(self, source: Source, lines: list[str]) -> list[str]:
        selection = self._selection
        if selection is None:
            return []
        label = source.label(selection.attempt) if self._has_labels else ""
        return [label + line for line in map(selection.mask.hide, lines) if self._wanted(line)]


def _read(folder: JobFolder, source: Source, reading: _Reading, limit: int, most: int) -> list[str]:
    """Read at most `limit` bytes and `most` lines."""
    reading.is_behind = False
    file = open_log(folder, source.path)
    if file is None:
        return []
    lines: list[str] = []
    with file, contextlib.suppress(OSError):  # a stale handle or failing disk must not affect other logs
        status = status_of(file)
        if reading.inode not in (None, status.st_ino) or status.st_size < reading.offset:
            lines.extend([*reading.cutter.flush(), f"[the log was cut here; older lines are in {source.older.name}]"])
            reading.offset = 0
        reading.inode = status.st_ino
        file.seek(reading.offset)
        block = file.read(limit)
        reading.is_behind = len(block) == limit
        if block.count(b"\n") > most:
            block = b"\n".join(block.split(b"\n", most)[:most]) + b"\n"
            reading.is_behind = True
        reading.offset += len(block)
        lines.extend(reading.cutter.feed(block))
    return lines
