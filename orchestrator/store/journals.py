"""Journal lines: the store as intake sees it. Each line counts once, by whatever road and however often it comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import NotFound
from orchestrator.domain.told import Told
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.store.engine import Database
from orchestrator.store.harvest import Harvest
from orchestrator.store.lookups import append_events
from orchestrator.store.mapping import told_of
from orchestrator.store.tables import JournalRow, TrainingRow
from orchestrator.store.upserts import Journal, Life, write_journals, write_trainings

_IN_ONE_QUESTION = 500  # job ids


class SqlJournalStore:
    """Implements ports.JournalStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """An attempt of which nothing is stored, or that does not exist, is left out."""
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
        wanted, jobs = set(keys), sorted({key.job_id for key in keys})
        with self._database.read() as session:
            for start in range(0, len(jobs), _IN_ONE_QUESTION):
                some = JournalRow.job_id.in_(jobs[start : start + _IN_ONE_QUESTION])
                for job_id, attempt, replica, life, progress, events, exited in session.execute(
                    select(*columns).where(some)
                ):
                    key = AttemptKey(job_id, attempt)
                    if key in wanted:
                        found[key][replica, life] = JournalOffsets(progress, events, exited)
        return found

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> None:
        """Raises NotFound for an unknown attempt; then nothing of the batches is stored."""
        if not batches:
            return
        keys = sorted({batch.key for batch in batches})
        with self._database.write() as session:
            trainings, journals = _lock_trainings(session, keys), _read_journals(session, keys)
            harvest = Harvest(arrived_at)
            for batch in batches:
                journal = journals.setdefault(_life(batch), Journal())
                harvest.take(batch, journal, trainings[batch.key])
            write_trainings(session, trainings)
            write_journals(session, {life: journals[life] for life in map(_life, batches)})
            harvest.write(session)
            append_events(session, harvest.events, news=harvest.news)


def _life(batch: JournalBatch) -> Life:
    return batch.key, batch.replica, batch.incarnation


def _lock_trainings(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Told]:
    """What was told of the attempts, their rows locked: whoever reads the same journals by another road waits here.

    In one order everywhere: two intakes that lock the same attempts never wait for each other in a ring. Raises
    NotFound where one does not exist.
    """
    found: dict[AttemptKey, Told] = {}
    for rows in _in_parts(session, TrainingRow, keys, locked=True):
        found |= {AttemptKey(row.job_id, row.attempt): told_of(row) for row in rows}
    missing = [key for key in keys if key not in found]
    if missing:
        raise NotFound(f"there is no attempt {missing[0]}")
    return {key: found[key] for key in keys}


def _read_journals(session: Session, keys: Sequence[AttemptKey]) -> dict[Life, Journal]:
    wanted = set(keys)
    return {
        (key, row.replica, row.incarnation): Journal(row.progress_to, row.events_to, row.exit_record)
        for rows in _in_parts(session, JournalRow, keys)
        for row in rows
        if (key := AttemptKey(row.job_id, row.attempt)) in wanted
    }


def _in_parts(
    session: Session, table: type[TrainingRow] | type[JournalRow], keys: Sequence[AttemptKey], *, locked: bool = False
) -> Iterator[Sequence[Any]]:
    """The rows of these attempts, and of others of the same jobs, in the order of their keys."""
    jobs = sorted({key.job_id for key in keys})
    query = select(*table.__table__.columns).order_by(table.job_id, table.attempt)
    if locked:
        query = query.with_for_update()
    for start in range(0, len(jobs), _IN_ONE_QUESTION):
        yield session.execute(query.where(table.job_id.in_(jobs[start : start + _IN_ONE_QUESTION]))).all()
