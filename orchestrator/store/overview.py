"""Read the jobs of a cluster that are not at rest. Each pass does this, so it must be cheap.

Rows are plain tuples and are read in parts, so that thousands of jobs take little memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, Subquery, bindparam, func, select, union_all
from sqlalchemy.orm import Bundle, Session, aliased

from orchestrator.domain.job.job import Job
from orchestrator.domain.queueing.admission import claimant_of
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.supervision import Supervised
from orchestrator.store.engine import Database
from orchestrator.store.lookups import LIVE_STATES, exits_of, in_parts, select_at_work
from orchestrator.store.mapping import attempt_of, job_of, training_of
from orchestrator.store.records import LiveJob
from orchestrator.store.shared_specs import named
from orchestrator.store.tables import AttemptRow, JobRow, JournalRow, TrainingRow
from trainer.contract.exit_record import ExitRecord


def read_at_work(database: Database, cluster: str) -> Set[str]:
    """Return the ids of the jobs of the cluster that are not at rest. Raises StoreUnavailable."""
    with database.read() as session:
        return set(session.scalars(_AT_WORK, {"cluster": cluster}))


def read_supervised(database: Database, cluster: str, among: Collection[str]) -> Sequence[Supervised]:
    """Return those of these jobs that are in the cluster and not at rest, oldest first.

    A job whose spec this version cannot parse is logged and left out. Raises StoreUnavailable.
    """
    found: list[Supervised] = []
    for ids in in_parts(among):
        with database.read() as session:
            # Cluster and state are compared here. In the statement, SQLite would search by them instead of by the ids.
            rows: Iterable[Any] = session.execute(_JOBS, {"ids": ids})
            parsed = _parse(database, session, [row for row in rows if row.cluster == cluster and _at_work(row)])
            attempts = _by_job(session.execute(_ATTEMPTS, {"ids": ids}))
            trainings = _by_job(session.execute(_TRAININGS, {"ids": ids}))
            exits = _exits(session, ids)
        found += [
            Supervised(
                job=job,
                shared_spec=shared_spec,
                attempt=None if (row := attempts.get(job.id)) is None else attempt_of(row),
                training=training_of(trainings.get(job.id)),
                exits={} if row is None else exits.get((row.job_id, row.number), {}),
            )
            for job, shared_spec in parsed
        ]
    return sorted(found, key=lambda each: (each.job.created_at, each.job.id))


def read_live_jobs(database: Database, clusters: Collection[str]) -> Sequence[LiveJob]:
    """Return the clusters' jobs that are not terminal, each with its newest attempt. Raises StoreUnavailable."""
    found: list[LiveJob] = []
    with database.read() as session:
        for part in session.execute(_LIVE_JOBS, {"clusters": clusters}).partitions(_PART):
            attempts = {row.job.id: attempt_of(row.attempt) for row in part if row.attempt.number is not None}
            for job, shared_spec in _parse(database, session, [row.job for row in part]):
                attempt = attempts.get(job.id)
                found.append(LiveJob(job, attempt, claimant_of(job, attempt, shared_spec)))
    return found


def _parse(database: Database, session: Session, rows: Sequence[Any]) -> list[tuple[Job, JobSpec]]:
    """Return each job and the spec that it shares with others."""
    specs = database.specs.read(session, rows)
    return [(job_of(row, named(specs[row.id], row.name)), specs[row.id]) for row in rows if row.id in specs]


def _by_job(rows: Iterable[Any]) -> dict[str, Any]:
    return {row.job_id: row for row in rows}


def _at_work(row: Any) -> bool:
    return row.state in LIVE_STATES or row.desired_retry_number > row.retries_done


def _select_with_newest_attempts(which: ColumnElement[bool]) -> Select[Any]:
    """Select `job`, and its newest `attempt`. The columns of `attempt` are None if there is none."""
    newest = _number_newest(AttemptRow.job_id.in_(select(JobRow.id).where(which)))
    job, attempt = Bundle[Any]("job", *_JOB_COLUMNS), Bundle[Any]("attempt", *_columns_of(AttemptRow))
    its_newest = (AttemptRow.job_id == newest.c.job_id) & (AttemptRow.number == newest.c.number)
    joined = select(job, attempt).select_from(JobRow).outerjoin(newest, newest.c.job_id == JobRow.id)
    return joined.outerjoin(AttemptRow, its_newest).where(which)


def _select_newest(
    table: type[AttemptRow] | type[TrainingRow] | type[JournalRow], number: Any, which: ColumnElement[bool]
) -> Select[Any]:
    """Select the rows of the newest attempts of jobs."""
    newest = _number_newest(which)
    is_newest = (newest.c.job_id == table.job_id) & (newest.c.number == number)
    return select(*_columns_of(table)).join(newest, is_newest)


def _number_newest(which: ColumnElement[bool]) -> Subquery:
    numbers = select(AttemptRow.job_id, func.max(AttemptRow.number).label("number")).where(which)
    return numbers.group_by(AttemptRow.job_id).subquery()


def _columns_of(table: type[AttemptRow] | type[TrainingRow] | type[JournalRow]) -> Sequence[ColumnElement[Any]]:
    """Return the columns, without the one that only intake needs."""
    return [column for column in table.__table__.columns if column.name != "stored"]


def _exits(session: Session, ids: Sequence[str]) -> Mapping[tuple[str, int], dict[int, ExitRecord]]:
    """Read the exit records of the newest attempts. Most have none, so all journals are read only of those that do."""
    ended = {row.job_id for row in session.execute(_EXITED, {"ids": ids})}
    journals: Iterable[Any] = session.execute(_JOURNALS, {"ids": sorted(ended)}) if ended else ()
    return exits_of(journals)


# Built once, because building an expression costs more than running it.
_PART = 500
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_JOB_COLUMNS = [column for column in JobRow.__table__.columns if column.name != "spec"]
_JOBS = select(*_JOB_COLUMNS).where(JobRow.id.in_(_IDS))
_ATTEMPTS = _select_newest(AttemptRow, AttemptRow.number, AttemptRow.job_id.in_(_IDS))
_TRAININGS = _select_newest(TrainingRow, TrainingRow.attempt, AttemptRow.job_id.in_(_IDS))
_JOURNALS = _select_newest(JournalRow, JournalRow.attempt, AttemptRow.job_id.in_(_IDS))
_EXITED = _JOURNALS.where(JournalRow.exit_record.is_not(None))
_AT_WORK = select_at_work(select(JobRow.id).where(JobRow.cluster == bindparam("cluster")))
# One search for each state, as in select_at_work.
_CLUSTERS: BindParameter[Any] = bindparam("clusters", expanding=True)
_OTHER = aliased(JobRow)
_HERE = select(_OTHER.id).where(_OTHER.cluster.in_(_CLUSTERS))
_LIVE = JobRow.id.in_(union_all(*(_HERE.where(_OTHER.state == state) for state in LIVE_STATES)))
_LIVE_JOBS = _select_with_newest_attempts(_LIVE)
