"""Journal lines: the store as intake sees it. Each line counts once, by whatever road and however often it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import NotFound
from orchestrator.domain.event import Event
from orchestrator.ports import JournalBatch, JournalOffsets
from orchestrator.store.engine import Database
from orchestrator.store.harvest import write_metrics, write_snapshots, write_workers
from orchestrator.store.lookups import append_events
from orchestrator.store.tables import JournalRow, TrainingRow
from orchestrator.store.training import time_of, told_by_event, told_by_line
from trainer.contract.exit_record import JournalEvent, render_exit_record


class SqlJournalStore:
    """Implements ports.JournalStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def offsets(self, key: AttemptKey) -> Mapping[tuple[int, int], JournalOffsets]:
        """Empty for an attempt of which nothing is stored, or that does not exist."""
        with self._database.read() as session:
            rows = session.scalars(
                select(JournalRow).where(JournalRow.job_id == key.job_id, JournalRow.attempt == key.number)
            )
            return {
                (row.replica, row.incarnation): JournalOffsets(
                    progress=row.progress_to, events=row.events_to, exited=row.exit_record is not None
                )
                for row in rows
            }

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> None:
        """Raises NotFound for an unknown attempt; then nothing of the batches is stored."""
        if not batches:
            return
        with self._database.write() as session:
            # In one order everywhere: two intakes that lock the same attempts never wait for each other in a ring.
            trainings = {key: _lock(session, key) for key in sorted({batch.key for batch in batches})}
            events: list[tuple[str, Event]] = []
            for batch in batches:
                events += _store(session, batch, trainings[batch.key], arrived_at)
            append_events(session, events)


def _lock(session: Session, key: AttemptKey) -> TrainingRow:
    """The attempt's training row, locked: whoever reads the same journals by another road waits here."""
    row = session.scalar(
        select(TrainingRow).where(TrainingRow.job_id == key.job_id, TrainingRow.attempt == key.number).with_for_update()
    )
    if row is None:
        raise NotFound(f"there is no attempt {key}")
    return row


def _store(
    session: Session, batch: JournalBatch, training: TrainingRow, arrived_at: datetime
) -> list[tuple[str, Event]]:
    """Store one batch but for its events, which are returned."""
    journal = _journal(session, batch)
    journal.progress_to = 0 if batch.progress_cut else journal.progress_to
    journal.events_to = 0 if batch.events_cut else journal.events_to
    lines, events = [], []
    if batch.progress_from <= journal.progress_to:
        lines = [line for offset, line in batch.progress if offset > journal.progress_to]
        journal.progress_to = max(journal.progress_to, batch.progress_to, *(offset for offset, _ in batch.progress))
    if batch.events_from <= journal.events_to:
        events = [event for offset, event in batch.events if offset > journal.events_to]
        journal.events_to = max(journal.events_to, batch.events_to, *(offset for offset, _ in batch.events))
    for event in events:
        told_by_event(training, event, arrived_at)
    for line in lines:
        told_by_line(training, line, arrived_at)
    write_workers(session, batch, lines, arrived_at)
    write_metrics(session, batch.key, lines, arrived_at)
    write_snapshots(session, batch.key, events, arrived_at)
    if journal.exit_record is None and batch.exit_record is not None:
        journal.exit_record = render_exit_record(batch.exit_record)
    return [(batch.key.job_id, _event_of(batch, event, arrived_at)) for event in events]


def _journal(session: Session, batch: JournalBatch) -> JournalRow:
    identity = (batch.key.job_id, batch.key.number, batch.replica, batch.incarnation)
    row = session.get(JournalRow, identity)
    if row is None:
        job_id, attempt, replica, incarnation = identity
        row = JournalRow(
            job_id=job_id, attempt=attempt, replica=replica, incarnation=incarnation, progress_to=0, events_to=0
        )
        session.add(row)
    return row


def _event_of(batch: JournalBatch, event: JournalEvent, arrived_at: datetime) -> Event:
    return Event(
        at=time_of(event.at, arrived_at),
        kind=event.kind,
        sentence=event.sentence,
        attempt=batch.key.number,
        generation=event.generation,
        evidence=event.evidence,
    )
