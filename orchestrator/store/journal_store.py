"""Journal lines, as intake stores them. Each line counts once, however often and by whichever way it arrives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestrator.domain.errors import NotFound
from orchestrator.domain.explanation.row_limits import Launch
from orchestrator.domain.job.attempt import AttemptKey, parse_nodes
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.store.engine import Database
from orchestrator.store.journal_rows import JournalRows, Training
from orchestrator.store.lookups import append_events, in_parts
from orchestrator.store.mapping import stored_of, summary_of
from orchestrator.store.tables import AttemptRow, JournalRow, TrainingRow
from orchestrator.store.upserts import Incarnation, Journal, write_journals, write_trainings


class SqlJournalStore:
    """Implements ports.JournalStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """Attempts without stored journals are left out."""
        columns = (
            JournalRow.job_id,
            JournalRow.attempt,
            JournalRow.replica,
            JournalRow.incarnation,
            JournalRow.progress_to,
            JournalRow.events_to,
            JournalRow.exit_record.is_not(None),
        )
        found: defaultdict[AttemptKey, dict[tuple[int, int], JournalOffsets]] = defaultdict(dict)
        wanted = set(keys)
        with self._database.read() as session:
            for some in _jobs_of(keys):
                for job_id, attempt, replica, incarnation, progress, events, exited in session.execute(
                    select(*columns).where(JournalRow.job_id.in_(some))
                ):
                    key = AttemptKey(job_id, attempt)
                    if key in wanted:
                        found[key][replica, incarnation] = JournalOffsets(progress, events, exited)
        return found

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        """Raises NotFound for an unknown attempt. Then none of the batches is stored."""
        if not batches:
            return {}
        keys = sorted({batch.key for batch in batches})
        with self._database.write() as session:
            trainings, journals = _lock_trainings(session, keys), _read_journals(session, keys)
            rows = JournalRows(arrived_at)
            refused = {
                place: refusal
                for place, batch in enumerate(batches)
                if (refusal := trainings[batch.key].launch.refusal(batch.replica, batch.incarnation)) is not None
            }
            for place, batch in enumerate(batches):
                if place in refused:
                    rows.refuse(batch, refused[place], trainings[batch.key])
                else:
                    rows.take(batch, journals.setdefault(_incarnation_of(batch), Journal()), trainings[batch.key])
            write_trainings(session, {key: (each.summary, each.stored) for key, each in trainings.items()})
            taken = [batch for place, batch in enumerate(batches) if place not in refused]
            write_journals(session, {incarnation: journals[incarnation] for incarnation in map(_incarnation_of, taken)})
            rows.write(session)
            append_events(session, rows.events, news=rows.news)
        return refused


def _incarnation_of(batch: JournalBatch) -> Incarnation:
    return batch.key, batch.replica, batch.incarnation


def _lock_trainings(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Training]:
    """Read the summaries of the attempts and lock their rows, so that reports of one attempt take turns.

    Rows are always locked in the same order, which prevents deadlocks. Raises NotFound for an unknown attempt.
    """
    wanted, launches = set(keys), _read_launches(session, keys)
    found = {
        key: Training(summary_of(row), stored_of(row.stored), launches[key])
        for rows in _rows_of(session, TrainingRow, keys, locked=True)
        for row in rows
        if (key := AttemptKey(row.job_id, row.attempt)) in wanted
    }
    missing = [key for key in keys if key not in found]
    if missing:
        raise NotFound(f"there is no attempt {missing[0]}")
    return {key: found[key] for key in keys}


def _read_launches(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Launch]:
    """Read the launches of these attempts, and of others of the same jobs."""
    columns = (AttemptRow.job_id, AttemptRow.number, AttemptRow.nodes, AttemptRow.workers_per_node)
    found: dict[AttemptKey, Launch] = {}
    for some in _jobs_of(keys):
        for job_id, number, nodes, workers in session.execute(select(*columns).where(AttemptRow.job_id.in_(some))):
            key = AttemptKey(job_id, number)
            found[key] = Launch(key, parse_nodes(nodes)[1], workers)
    return found


def _read_journals(session: Session, keys: Sequence[AttemptKey]) -> dict[Incarnation, Journal]:
    wanted = set(keys)
    return {
        (key, row.replica, row.incarnation): Journal(row.progress_to, row.events_to, row.exit_record)
        for rows in _rows_of(session, JournalRow, keys)
        for row in rows
        if (key := AttemptKey(row.job_id, row.attempt)) in wanted
    }


def _rows_of(
    session: Session, table: type[TrainingRow] | type[JournalRow], keys: Sequence[AttemptKey], *, locked: bool = False
) -> Iterator[Sequence[Any]]:
    """Read the rows of these attempts, and of others of the same jobs, in the order of their keys."""
    query = select(*table.__table__.columns).order_by(table.job_id, table.attempt)
    if locked:
        query = query.with_for_update()
    for some in _jobs_of(keys):
        yield session.execute(query.where(table.job_id.in_(some))).all()


def _jobs_of(keys: Collection[AttemptKey]) -> Iterator[list[str]]:
    return in_parts({key.job_id for key in keys})
