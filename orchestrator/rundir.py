"""Read and write the run directory. `trainer.contract` defines the formats.

Documents are replaced whole (temporary file, fsync, rename). Journals grow; an incomplete last line is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.event import EventKind
from orchestrator.fast_json import parse_json
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, parse_agent_record
from trainer.contract.exit_record import ExitRecord, JournalEvent, parse_exit_record, parse_journal_event
from trainer.contract.fence import Term
from trainer.contract.launch import DesiredDocument, LaunchPolicy, render_desired, render_policy
from trainer.contract.progress import Progress, parse_progress

Document = TypeVar("Document")

MAX_READ_BYTES = 512 * 1024  # per read of a journal, which takes a fraction of a second even for short lines
MAX_READ_LINES = 3000  # per read of a journal
MAX_BACKLOG_BYTES = 256 * 1024 * 1024  # per journal: two days of eight ranks with a step every second
MAX_DOCUMENT_BYTES = 256 * 1024
# Values in a document, estimated by its punctuation: 100,000 take a tenth of a second to parse.
_MAX_VALUES = 8192
_VALUES = (b",", b"[", b"{")
MAX_INCARNATIONS = 16  # of one replica; only the newest are read
_MAX_NAMES = 1000  # in one replica's folder
# The exceptions that parsing a job's text may raise.
UNREADABLE = (ValueError, TypeError, LookupError, OverflowError, RecursionError, AttributeError)
_HERE = Path()  # makes the paths of `layout` relative to the open folder
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")
_OURS = frozenset(kind.value for kind in EventKind)
_WITHDRAWN = b"withdrawn"  # the claim's content in place of an agent's token


def write_document(folder: Folder, path: Path, document: Mapping[str, object], *, private: bool = False) -> None:
    """Write a JSON document atomically. A `private` file is readable by its owner only. Raises OSError."""
    folder.write(path, json.dumps(document).encode(), private=private)


def read_document(folder: Folder, path: Path) -> dict[str, object] | None:
    """Return the document. None if it does not exist or is not a JSON object. Raises OSError if the disk fails."""
    content = folder.read(path, limit=MAX_DOCUMENT_BYTES)
    if content is None or sum(map(content.count, _VALUES)) > _MAX_VALUES:
        return None
    try:
        document = json.loads(content)
    except UNREADABLE:
        return None
    return document if isinstance(document, dict) else None


def write_launch(job: JobFolder, attempt: int, policy: LaunchPolicy, *, replicas: int) -> None:
    document = {"version": 1, "replicas": replicas, "policy": render_policy(policy)}
    with job.make() as folder:
        write_document(folder, layout.attempt_dir(_HERE, attempt) / layout.LAUNCH, document)


@dataclass(frozen=True, slots=True)
class LocalRunDirectories:
    """Implements ports.RunDirectories on a file system that the service mounts."""

    root: Path

    def fence(self, job_id: str, attempt: int) -> None:
        with JobFolder(self.root, job_id).make() as folder:
            folder.touch(layout.fence_dir(_HERE) / Term(attempt, 0).file_name)

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        path, document = layout.attempt_dir(_HERE, attempt) / layout.DESIRED, render_desired(desired)
        with JobFolder(self.root, job_id).make() as folder:
            if read_document(folder, path) != document:
                write_document(folder, path, document)

    def withdraw(self, job_id: str, attempt: int) -> bool:
        """Claim the attempt, so that all its agents are refused. Returns False if an agent has claimed it.

        The claim appears with its content: agents ignore an empty one.
        """
        path = layout.attempt_dir(_HERE, attempt) / layout.CLAIM
        with JobFolder(self.root, job_id).make() as folder:
            return folder.create(path, _WITHDRAWN) or folder.read(path, limit=MAX_DOCUMENT_BYTES) == _WITHDRAWN


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The files of one incarnation. `path` is relative to `folder`, the open folder of the attempt or its own."""

    replica: int
    number: int
    folder: Folder
    path: Path

    def agent(self) -> AgentRecord | None:
        return _parsed(self.folder, self.path / layout.AGENT, parse_agent_record)

    def exit(self) -> ExitRecord | None:
        return _parsed(self.folder, self.path / layout.EXIT, parse_exit_record)

    def has_exit_file(self) -> bool:
        return self.folder.status(self.path / layout.EXIT) is not None


def open_attempt(job: JobFolder, attempt: int) -> Folder:
    """Open an attempt's folder, which may not exist. Raises OSError."""
    return job.open(*layout.attempt_dir(_HERE, attempt).parts)


def incarnations(attempt: Folder, replicas: Iterable[int]) -> Iterator[Incarnation]:
    """Yield the newest incarnations of each replica, by number. `attempt` is the attempt's open folder.

    `replicas` comes from the launch, because the job itself may create any name in the folder.
    """
    for replica in replicas:
        folder = Path(f"replica-{replica}")
        names = attempt.folders(folder, limit=_MAX_NAMES)
        numbers = sorted(int(name) for name in names if _NUMBER.match(name))
        for number in numbers[-MAX_INCARNATIONS:]:
            yield Incarnation(replica, number, attempt, folder / str(number))


def was_claimed(attempt: Folder) -> bool:
    return attempt.status(Path(layout.CLAIM)) is not None


_UNREAD = JournalOffsets()
IncarnationKey = tuple[int, int]  # of an incarnation: replica and number
Grown = Mapping[IncarnationKey, Collection[str]]  # the names of the journals that have grown


def read_news(
    job: JobFolder,
    key: AttemptKey,
    replicas: int,
    known: Mapping[IncarnationKey, JournalOffsets],
    grown: Grown | None = None,
) -> Iterator[JournalBatch]:
    """Read what the replicas wrote since the offsets in `known`. Leaves out replicas that wrote nothing.

    With `grown`, reads only these journals: nothing else has changed.
    """
    if grown is not None:
        for place, names in sorted(grown.items()):
            stored, way = known.get(place, _UNREAD), _way_to(key.number, *place)
            progress, events = (
                _read_on(job, (*way, name), offset) if name in names else Chunk([], offset, offset)
                for name, offset in ((layout.PROGRESS, stored.progress), (layout.EVENTS, stored.events))
            )
            news = _news_of((key, *place), stored, progress, events)
            if news is not None:
                yield news
        return
    with open_attempt(job, key.number) as attempt:
        for life in incarnations(attempt, range(replicas)):
            with attempt.within(life.path) as folder:
                at_home = Incarnation(life.replica, life.number, folder, _HERE)
                stored = known.get((life.replica, life.number), _UNREAD)
                # Read before the journals, so that they are complete.
                ended = not stored.exited and at_home.has_exit_file()
                exit_record = at_home.exit() if ended else None
                progress = read_journal(folder, layout.PROGRESS, stored.progress)
                events = read_journal(folder, layout.EVENTS, stored.events)
            broken = ended and exit_record is None
            incarnation = key, life.replica, life.number
            news = _news_of(incarnation, stored, progress, events, exit_record, has_broken_exit=broken)
            if news is not None:
                yield news


@lru_cache(maxsize=1024)
def _way_to(attempt: int, replica: int, incarnation: int) -> tuple[str, ...]:
    """Return the names that lead from the job's folder to that of an incarnation."""
    return (layout.replica_dir(_HERE, attempt, replica) / str(incarnation)).parts


def _news_of(
    incarnation: tuple[AttemptKey, int, int],
    stored: JournalOffsets,
    progress: Chunk,
    events: Chunk,
    exit_record: ExitRecord | None = None,
    *,
    has_broken_exit: bool = False,
) -> JournalBatch | None:
    is_part = progress.more or events.more
    if is_part:
        exit_record = None  # it comes with the last part
    has_grown = (progress.end, events.end) != (stored.progress, stored.events)
    if not (has_grown or has_broken_exit or exit_record is not None):
        return None
    key, replica, number = incarnation
    return JournalBatch(
        key=key,
        replica=replica,
        incarnation=number,
        progress=parse_progress_lines(progress.lines),
        progress_to=progress.end,
        events=parse_event_lines(events.lines),
        events_to=events.end,
        exit_record=exit_record,
        progress_from=progress.start,
        events_from=events.start,
        progress_cut=progress.start < stored.progress,
        events_cut=events.start < stored.events,
        is_part=is_part,
        has_broken_exit=has_broken_exit,
    )


Line = tuple[int, bytes]  # (offset after the newline, the line without it)


class Chunk(NamedTuple):
    """Complete lines of a journal from byte `start` to byte `end`. `more` means that the file has more data."""

    lines: list[Line]
    start: int
    end: int
    more: bool = False


def read_journal(folder: Folder, name: str, offset: int) -> Chunk:
    """Read complete lines from `offset` on, up to MAX_READ_BYTES and MAX_READ_LINES.

    Reads a file that became shorter from its start. After a line longer than MAX_READ_BYTES, it continues that many
    bytes before the end. Skips all data more than MAX_BACKLOG_BYTES before the end.
    """
    status = folder.status(Path(name))
    # A file of exactly this length has no new lines and need not be opened.
    return Chunk([], offset, offset) if status is None or status.st_size == offset else _read_on(folder, [name], offset)


def _read_on(folder: Folder | JobFolder, names: Sequence[str], offset: int) -> Chunk:
    found = folder.read_on(names, offset, limit=MAX_READ_BYTES)
    if found is None:
        return Chunk([], offset, offset)
    content, size = found
    start = offset if offset <= size else 0
    if size - start > MAX_BACKLOG_BYTES:
        return Chunk([], start, size - MAX_BACKLOG_BYTES, more=True)
    more = len(content) == MAX_READ_BYTES
    whole, newline, _torn = content.rpartition(b"\n")
    if not newline:
        return Chunk([], start, max(start + len(content), size - MAX_READ_BYTES) if more else start, more)
    lines, end = split_lines(whole, start, most=MAX_READ_LINES)
    return Chunk(lines, start, end, more or end < start + len(whole))


def split_lines(whole: bytes, offset: int, *, most: int | None = None) -> tuple[list[Line], int]:
    """Split text without its last newline into at most `most` lines with their offsets."""
    lines: list[Line] = []
    for line in whole.split(b"\n", -1 if most is None else most)[:most]:
        offset += len(line) + 1
        lines.append((offset, line))
    return lines, offset


def parse_progress_lines(lines: list[Line]) -> list[tuple[int, Progress]]:
    """Skip invalid lines, so that a foreign writer cannot stop the journal."""
    return [(end, parsed) for end, line in lines if (parsed := _line(line, parse_progress)) is not None]


def parse_event_lines(lines: list[Line]) -> list[tuple[int, JournalEvent]]:
    """Skip invalid lines. A kind that only the service may write gets the prefix `reported.`."""
    parsed = [(end, event) for end, line in lines if (event := _line(line, parse_journal_event)) is not None]
    return [
        (end, replace(event, kind=f"reported.{event.kind}") if event.kind in _OURS else event) for end, event in parsed
    ]


def _line(line: bytes, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    try:
        document = parse_json(line)
        return parse(document) if isinstance(document, dict) else None
    except UNREADABLE:
        return None


def _parsed(folder: Folder, path: Path, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    document = read_document(folder, path)
    try:
        return None if document is None else parse(document)
    except UNREADABLE:
        return None
