"""Journal lines, as intake stores them. Each line counts once, however often and by whichever way it arrives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, Table, select
from sqlalchemy.orm import Session

from orchestrator.domain.errors import NotFound
from orchestrator.domain.explanation.row_limits import Launch
from orchestrator.domain.job.attempt import AttemptKey, parse_nodes
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.store.engine import Database
from orchestrator.store.journal_rows import JournalRows, Training
from orchestrator.store.lookups import among, append_events, bind_ids, in_parts
from orchestrator.store.many_rows import dialect_of, table_of
from orchestrator.store.mapping import SUMMARY_COLUMNS, stored_of, summary_of
from orchestrator.store.tables import AttemptRow, JournalRow, TrainingRow
from orchestrator.store.upserts import Journal, JournalKey, write_journals, write_trainings

_ATTEMPTS, _JOURNALS, _TRAININGS = table_of(AttemptRow), table_of(JournalRow), table_of(TrainingRow)
_INCARNATION = ("job_id", "attempt", "replica", "incarnation")
_HOW_FAR = select(*(_JOURNALS.c[name] for name in (*_INCARNATION, "progress_to", "events_to")))
# Built once, because building an expression costs more than running it.
_OFFSETS = _HOW_FAR.add_columns(_JOURNALS.c.exit_record.is_not(None))
_STORED_JOURNALS = _HOW_FAR.add_columns(_JOURNALS.c.exit_record)
# Rows are always locked in the same order, which prevents deadlocks.
_LOCKED_TRAININGS = (
    select(
        _TRAININGS.c.job_id,
        _TRAININGS.c.attempt,
        _ATTEMPTS.c.nodes,
        _ATTEMPTS.c.workers_per_node,
        _TRAININGS.c.stored,
        *(_TRAININGS.c[name] for name in SUMMARY_COLUMNS),
    )
    .join(_ATTEMPTS, (_ATTEMPTS.c.job_id == _TRAININGS.c.job_id) & (_ATTEMPTS.c.number == _TRAININGS.c.attempt))
    .order_by(_TRAININGS.c.job_id, _TRAININGS.c.attempt)
    .with_for_update(of=_TRAININGS)
)


class SqlJournalStore:
    """Implements ports.JournalStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """Attempts without stored journals are left out."""
        found: defaultdict[AttemptKey, dict[tuple[int, int], JournalOffsets]] = defaultdict(dict)
        wanted = set(keys)
        with self._database.read() as session:
            for job_id, attempt, replica, incarnation, *journal in _read(session, _OFFSETS, _JOURNALS, wanted):
                key = AttemptKey(job_id, attempt)
                if key in wanted:
                    found[key][replica, incarnation] = JournalOffsets(*journal)
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


def _incarnation_of(batch: JournalBatch) -> JournalKey:
    return batch.key, batch.replica, batch.incarnation


def _lock_trainings(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Training]:
    """Read the summaries of the attempts. Lock the rows of all attempts of their jobs: reports of a job take turns.

    Raises NotFound for an unknown attempt.
    """
    found: dict[AttemptKey, Training] = {}
    for job_id, number, nodes, workers, stored, *columns in _read(session, _LOCKED_TRAININGS, _TRAININGS, keys):
        key = AttemptKey(job_id, number)
        launch = Launch(key, parse_nodes(nodes)[1], workers)
        found[key] = Training(summary_of(columns), stored_of(stored), launch)
    missing = [key for key in keys if key not in found]
    if missing:
        raise NotFound(f"there is no attempt {missing[0]}")
    return {key: found[key] for key in keys}


def _read_journals(session: Session, keys: Sequence[AttemptKey]) -> dict[JournalKey, Journal]:
    return {
        (AttemptKey(job_id, attempt), replica, incarnation): Journal(*journal)
        for job_id, attempt, replica, incarnation, *journal in _read(session, _STORED_JOURNALS, _JOURNALS, keys)
    }


def _read(session: Session, query: Select[Any], table: Table, keys: Collection[AttemptKey]) -> Iterator[Sequence[Any]]:
    """Read the rows of these attempts, and of others of the same jobs."""
    of_jobs = _of_jobs(query, table, dialect_of(session))
    for some in in_parts({key.job_id for key in keys}):
        yield from session.connection().execute(of_jobs, {"ids": bind_ids(session, some)}).all()


@lru_cache
def _of_jobs(query: Select[Any], table: Table, dialect: str) -> Select[Any]:
    return query.where(among(dialect, table.c.job_id, "ids"))
