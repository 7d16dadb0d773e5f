"""The run directory: reading and writing of what trainer.contract describes. Nothing here decides.

Documents appear whole (temporary file, fsync, rename). Journals grow; a torn last line is not there yet.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.event import EventKind
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, parse_agent_record
from trainer.contract.exit_record import ExitRecord, JournalEvent, parse_exit_record, parse_journal_event
from trainer.contract.fence import Term
from trainer.contract.launch import DesiredDocument, LaunchPolicy, render_desired, render_policy
from trainer.contract.progress import Progress, parse_progress

Document = TypeVar("Document")

MAX_READ_BYTES = 4 * 1024 * 1024  # of one journal in one go
MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_REPLICAS = 100_000
# What a text that is no document of ours may raise while it is parsed.
UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError, AttributeError)
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_OURS = frozenset(kind.value for kind in EventKind)
_WITHDRAWN = "withdrawn"  # in place of a submission's token
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


def write_document(path: Path, document: Mapping[str, object], *, private: bool = False) -> None:
    """Write a JSON document so that readers see the old one or the new one; a `private` one is its owner's alone.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk needs no litter
        raise


def open_regular(path: Path) -> BinaryIO | None:
    """Open a regular file; None when it is not there or is anything else, which must not hold the reader.

    Raises OSError for a failing disk: that a file cannot be read is no evidence that it is not there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def read_document(path: Path) -> dict[str, object] | None:
    """The document, or None when there is none or it is no JSON object. Raises OSError for a failing disk."""
    file = open_regular(path)
    if file is None:
        return None
    with file:
        content = file.read(MAX_DOCUMENT_BYTES)
    try:
        document = json.loads(content)
    except UNREADABLE:
        return None
    return document if isinstance(document, dict) else None


def write_launch(job_dir: Path, attempt: int, policy: LaunchPolicy, *, replicas: int) -> None:
    document = {"version": 1, "replicas": replicas, "policy": render_policy(policy)}
    write_document(layout.attempt_dir(job_dir, attempt) / layout.LAUNCH, document)


def read_replicas(job_dir: Path, attempt: int) -> int | None:
    """How many replicas were to be launched, or None before that was written."""
    document = read_document(layout.attempt_dir(job_dir, attempt) / layout.LAUNCH)
    replicas = None if document is None else document.get("replicas")
    return replicas if isinstance(replicas, int) and 1 <= replicas <= MAX_REPLICAS else None


def write_desired(job_dir: Path, attempt: int, desired: DesiredDocument) -> None:
    """Idempotent, and cheap where it is written already."""
    path, document = layout.attempt_dir(job_dir, attempt) / layout.DESIRED, render_desired(desired)
    if read_document(path) != document:
        write_document(path, document)


def fence(job_dir: Path, attempt: int) -> None:
    """From now on no attempt before `attempt` may commit a snapshot. Idempotent."""
    path = layout.fence_dir(job_dir) / Term(attempt, 0).file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(exist_ok=True)


def withdraw(job_dir: Path, attempt: int) -> bool:
    """Claim the attempt for nobody, so that every agent of it is refused; False when one holds the claim. Idempotent.

    The claim appears whole: agents pass over an empty one.
    """
    path = layout.attempt_dir(job_dir, attempt) / layout.CLAIM
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(_WITHDRAWN)
        os.link(temporary, path)
    except FileExistsError:
        return path.read_text().strip() == _WITHDRAWN
    finally:
        temporary.unlink(missing_ok=True)
    return True


@dataclass(frozen=True, slots=True)
class LocalRunDirectories:
    """Implements ports.RunDirectories on a file system that the service mounts."""

    root: Path

    def fence(self, job_id: str, attempt: int) -> None:
        fence(self.root / job_id, attempt)

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        write_desired(self.root / job_id, attempt, desired)

    def withdraw(self, job_id: str, attempt: int) -> bool:
        return withdraw(self.root / job_id, attempt)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a replica's agent, on disk."""

    replica: int
    number: int
    path: Path

    def agent(self) -> AgentRecord | None:
        return _parsed(self.path / layout.AGENT, parse_agent_record)

    def exit(self) -> ExitRecord | None:
        return _parsed(self.path / layout.EXIT, parse_exit_record)


def incarnations(job_dir: Path, attempt: int) -> Iterator[Incarnation]:
    """Every incarnation of every replica, by replica, then by number."""
    for replica, folder in _numbered(layout.attempt_dir(job_dir, attempt), "replica-"):
        for number, path in _numbered(folder, ""):
            yield Incarnation(replica, number, path)


def was_claimed(job_dir: Path, attempt: int) -> bool:
    return (layout.attempt_dir(job_dir, attempt) / layout.CLAIM).exists()


def read_news(
    job_dir: Path, key: AttemptKey, known: Mapping[tuple[int, int], JournalOffsets]
) -> Iterator[JournalBatch]:
    """What the attempt's replicas wrote since the offsets in `known`; replicas without news are left out."""
    for life in incarnations(job_dir, key.number):
        stored = known.get((life.replica, life.number), JournalOffsets())
        exit_record = None if stored.exited else life.exit()  # before the journals: then they are complete
        progress = read_journal(life.path / layout.PROGRESS, stored.progress)
        events = read_journal(life.path / layout.EVENTS, stored.events)
        if progress.more or events.more:
            exit_record = None  # the last word comes last
        if exit_record is None and progress.end == stored.progress and events.end == stored.events:
            continue
        yield JournalBatch(
            key=key,
            replica=life.replica,
            incarnation=life.number,
            progress=parse_progress_lines(progress.lines),
            progress_to=progress.end,
            events=parse_event_lines(events.lines),
            events_to=events.end,
            exit_record=exit_record,
            progress_from=progress.start,
            events_from=events.start,
            progress_cut=progress.start < stored.progress,
            events_cut=events.start < stored.events,
        )


def goes_on(batch: JournalBatch) -> bool:
    """Whether a journal may be longer than what was read of it in one go."""
    longest = max(batch.progress_to - batch.progress_from, batch.events_to - batch.events_from)
    return longest > MAX_READ_BYTES // 2


Line = tuple[int, bytes]  # (offset behind the line's end, its bytes without the end)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a journal from byte `start` to byte `end`; `more` when the file goes on behind them."""

    lines: list[Line]
    start: int
    end: int
    more: bool = False


def read_journal(path: Path, offset: int) -> Chunk:
    """Whole lines from `offset` on, at most MAX_READ_BYTES. A file that was cut is read from its beginning."""
    file = None if _holds(path, offset) else open_regular(path)
    if file is None:
        return Chunk([], offset, offset)
    with file:
        size = os.fstat(file.fileno()).st_size
        start = offset if offset <= size else 0
        file.seek(start)
        content = file.read(MAX_READ_BYTES)
    more = len(content) == MAX_READ_BYTES
    whole, newline, _torn = content.rpartition(b"\n")
    if not newline:
        # A line longer than all we read would stop the journal for good: it is no line of ours.
        return Chunk([], start, start + len(content) if more else start, more)
    lines, end = split_lines(whole, start)
    return Chunk(lines, start, end, more)


def _holds(path: Path, size: int) -> bool:
    """Whether the file is just so long: then there is no news in it, and no need to open it."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False  # opening it tells why


def split_lines(whole: bytes, offset: int) -> tuple[list[Line], int]:
    """Split text without its last line end into lines with their offsets."""
    lines: list[Line] = []
    for line in whole.split(b"\n"):
        offset += len(line) + 1
        lines.append((offset, line))
    return lines, offset


def parse_progress_lines(lines: list[Line]) -> list[tuple[int, Progress]]:
    """Lines that are none are passed over: a foreign writer must not stop the journal."""
    return [(end, parsed) for end, line in lines if (parsed := _line(line, parse_progress)) is not None]


def parse_event_lines(lines: list[Line]) -> list[tuple[int, JournalEvent]]:
    """Lines that are none are passed over. What only the service may say is marked as somebody else's word."""
    parsed = [(end, event) for end, line in lines if (event := _line(line, parse_journal_event)) is not None]
    return [
        (end, replace(event, kind=f"reported.{event.kind}") if event.kind in _OURS else event) for end, event in parsed
    ]


def _line(line: bytes, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    try:
        document = json.loads(line)
        return parse(document) if isinstance(document, dict) else None
    except UNREADABLE:
        return None


def _parsed(path: Path, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    document = read_document(path)
    try:
        return None if document is None else parse(document)
    except UNREADABLE:
        return None


def _numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """Sub-folders named by the prefix and a whole number of at most nine digits."""
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = [(entry.name.removeprefix(prefix), entry) for entry in named]
    return sorted(
        (int(number), folder / entry.name)
        for number, entry in numbers
        if _NUMBER.match(number) and entry.is_dir(follow_symlinks=False)
    )
