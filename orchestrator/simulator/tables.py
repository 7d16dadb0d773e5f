"""The tables of the store in memory, and what journals leave in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.domain.attempt import Attempt, AttemptKey
from orchestrator.domain.errors import NotFound
from orchestrator.domain.event import Event
from orchestrator.domain.job import Job
from orchestrator.ports import JournalBatch, JournalOffsets
from orchestrator.simulator.told import Told, told_by_event, told_by_line
from trainer.contract.clock import parse_time
from trainer.contract.exit_record import ExitRecord, Outcome

Life = tuple[AttemptKey, int, int]  # attempt, replica, incarnation


@dataclass(frozen=True, slots=True)
class _Journal:
    offsets: JournalOffsets = field(default_factory=JournalOffsets)
    exit_record: ExitRecord | None = None


@dataclass(slots=True)
class Tables:
    """Rows are immutable: a copy of the dictionaries is a copy of the database."""

    jobs: dict[str, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # (project, key): (digest, job)
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    told: dict[AttemptKey, Told] = field(default_factory=dict)
    journals: dict[Life, _Journal] = field(default_factory=dict)
    ports: dict[AttemptKey, tuple[str, int]] = field(default_factory=dict)
    events: list[tuple[str, Event]] = field(default_factory=list)

    def copy(self) -> Tables:
        return Tables(
            jobs=dict(self.jobs),
            keys=dict(self.keys),
            attempts=dict(self.attempts),
            told=dict(self.told),
            journals=dict(self.journals),
            ports=dict(self.ports),
            events=list(self.events),
        )

    def job(self, job_id: str) -> Job:
        """Raises NotFound."""
        if job_id not in self.jobs:
            raise NotFound(f"there is no job {job_id}")
        return self.jobs[job_id]


def ingest(tables: Tables, batch: JournalBatch, arrived_at: datetime) -> None:
    if batch.key not in tables.told:
        raise NotFound(f"there is no attempt {batch.key}")
    life = (batch.key, batch.replica, batch.incarnation)
    journal = tables.journals.get(life, _Journal())
    known, told = journal.offsets, tables.told[batch.key]
    progress_to = 0 if batch.progress_cut else known.progress
    events_to = 0 if batch.events_cut else known.events
    if batch.events_from <= events_to:
        for event in [event for end, event in batch.events if end > events_to]:
            told = told_by_event(told, event)
            tables.events.append((batch.key.job_id, _event(batch.key, event.kind, event.sentence, event.at)))
        events_to = max(events_to, batch.events_to)
    if batch.progress_from <= progress_to:
        for line in [line for end, line in batch.progress if end > progress_to]:
            told = told_by_line(told, line, arrived_at)
        progress_to = max(progress_to, batch.progress_to)
    record = journal.exit_record or batch.exit_record
    tables.told[batch.key] = told
    offsets = JournalOffsets(progress=progress_to, events=events_to, exited=record is not None)
    tables.journals[life] = _Journal(offsets, record)


def _event(key: AttemptKey, kind: str, sentence: str, at: str) -> Event:
    return Event(at=parse_time(at), kind=kind, sentence=sentence, attempt=key.number)


def exits_of(tables: Tables, key: AttemptKey) -> dict[int, ExitRecord]:
    """The exit records by replica: of its newest life; one that was refused counts only where there was no other."""
    newest: dict[int, tuple[tuple[bool, int], ExitRecord | None]] = {}
    for (of, replica, life), row in tables.journals.items():
        record = row.exit_record
        standing = (record is None or record.outcome is not Outcome.REFUSED, life)
        if of == key and (replica not in newest or standing > newest[replica][0]):
            newest[replica] = (standing, record)
    return {replica: record for replica, (_, record) in newest.items() if record is not None}
