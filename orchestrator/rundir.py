"""The run directory: reading and writing of what trainer.contract describes. Nothing here decides.

Documents appear whole (temporary file, fsync, rename). Journals grow; a torn last line is not there yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from orchestrator.domain.attempt import AttemptKey
from orchestrator.ports import JournalBatch, JournalOffsets
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, parse_agent_record
from trainer.contract.exit_record import ExitRecord, JournalEvent, parse_exit_record, parse_journal_event
from trainer.contract.fence import Term
from trainer.contract.launch import DesiredDocument, LaunchPolicy, render_desired, render_policy
from trainer.contract.progress import Progress, parse_progress

Document = TypeVar("Document")

MAX_READ_BYTES = 4 * 1024 * 1024  # of one journal in one go: the rest waits for the next pass


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON document so that readers see the old one or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_document(path: Path) -> dict[str, object] | None:
    """The document, or None when there is none or it is no JSON object. Raises OSError for a failing disk."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_launch(job_dir: Path, attempt: int, policy: LaunchPolicy, *, replicas: int) -> None:
    document = {"version": 1, "replicas": replicas, "policy": render_policy(policy)}
    write_document(layout.attempt_dir(job_dir, attempt) / layout.LAUNCH, document)


def read_replicas(job_dir: Path, attempt: int) -> int | None:
    """How many replicas were to be launched, or None before that was written."""
    document = read_document(layout.attempt_dir(job_dir, attempt) / layout.LAUNCH)
    return None if document is None else int(str(document.get("replicas", 1)))


def write_desired(job_dir: Path, attempt: int, desired: DesiredDocument) -> None:
    write_document(layout.attempt_dir(job_dir, attempt) / layout.DESIRED, render_desired(desired))


def fence(job_dir: Path, attempt: int) -> None:
    """From now on no attempt before `attempt` may commit a snapshot. Idempotent."""
    path = layout.fence_dir(job_dir) / Term(attempt, 0).file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(exist_ok=True)


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
        offsets = known.get((life.replica, life.number), JournalOffsets())
        exit_record = None if offsets.exited else life.exit()  # before the journals: then they are complete
        progress_lines, progress_to = read_journal(life.path / layout.PROGRESS, offsets.progress)
        event_lines, events_to = read_journal(life.path / layout.EVENTS, offsets.events)
        if exit_record is None and progress_to == offsets.progress and events_to == offsets.events:
            continue
        yield JournalBatch(
            key=key,
            replica=life.replica,
            incarnation=life.number,
            progress=parse_progress_lines(progress_lines),
            progress_to=progress_to,
            events=parse_event_lines(event_lines),
            events_to=events_to,
            exit_record=exit_record,
            progress_from=offsets.progress,
            events_from=offsets.events,
        )


Line = tuple[int, bytes]  # (offset behind the line's end, its bytes without the end)


def read_journal(path: Path, offset: int) -> tuple[list[Line], int]:
    """Whole lines from `offset` on, at most MAX_READ_BYTES, and the offset behind the last of them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            chunk = file.read(MAX_READ_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return [], offset
    whole, end, _torn = chunk.rpartition(b"\n")
    if not end:
        # A line longer than all we read would stop the journal for good: it is no line of ours.
        return [], offset + len(chunk) if len(chunk) == MAX_READ_BYTES else offset
    return split_lines(whole, offset)


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
    return [(end, parsed) for end, line in lines if (parsed := _line(line, parse_journal_event)) is not None]


def _line(line: bytes, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    try:
        document = json.loads(line)
        return parse(document) if isinstance(document, dict) else None
    except (ValueError, RecursionError):
        return None


def _parsed(path: Path, parse: Callable[[dict[str, object]], Document]) -> Document | None:
    document = read_document(path)
    try:
        return None if document is None else parse(document)
    except ValueError:
        return None


def _numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(int(name.removeprefix(prefix)), folder / name) for name in names if _is_numbered(name, prefix)]
    return sorted(found)


def _is_numbered(name: str, prefix: str) -> bool:
    number = name.removeprefix(prefix)
    return name.startswith(prefix) and number.isascii() and number.isdigit()
