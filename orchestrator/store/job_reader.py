"""Read jobs: pages, single jobs, and what is requested of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Select, bindparam, func, or_, select, type_coerce
from sqlalchemy.orm import Session

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.job import JobState
from orchestrator.ports.jobs import JobStanding, Requested
from orchestrator.store.engine import Database
from orchestrator.store.lookups import AT_REST, in_parts, require_job
from orchestrator.store.mapping import attempt_of, desired_of, job_of, training_of
from orchestrator.store.paging import Key, Listing
from orchestrator.store.records import JobFilter, JobOrder, LogContext
from orchestrator.store.tables import AttemptRow, JobLabelRow, JobRow, SnapshotRow, TrainingRow

_UP = (Key(JobRow.created_at, datetime), Key(JobRow.id, str))
_DOWN = (Key(JobRow.created_at, datetime, descending=True), Key(JobRow.id, str, descending=True))
# All keys of an order have the same direction, so that one index serves it.
_LISTINGS = {
    order: Listing(f"jobs-{order}", keys)
    for order, keys in {
        JobOrder.NEWEST: _DOWN,
        JobOrder.OLDEST: _UP,
        JobOrder.UPDATED: (Key(JobRow.updated_at, datetime), Key(JobRow.id, str)),
        JobOrder.UPDATED_DOWN: (
            Key(JobRow.updated_at, datetime, descending=True),
            Key(JobRow.id, str, descending=True),
        ),
        JobOrder.NAME: (Key(JobRow.name, str), *_UP),
        JobOrder.NAME_DOWN: (Key(JobRow.name, str, descending=True), *_DOWN),
        JobOrder.STATE: (Key(JobRow.state, str), *_UP),
        JobOrder.STATE_DOWN: (Key(JobRow.state, str, descending=True), *_DOWN),
        JobOrder.PROJECT: (Key(JobRow.project, str), *_UP),
        JobOrder.PROJECT_DOWN: (Key(JobRow.project, str, descending=True), *_DOWN),
        JobOrder.CLUSTER: (Key(JobRow.cluster, str), *_UP),
        JobOrder.CLUSTER_DOWN: (Key(JobRow.cluster, str, descending=True), *_DOWN),
        JobOrder.PRIORITY: (Key(JobRow.priority, int), *_UP),
        JobOrder.PRIORITY_DOWN: (Key(JobRow.priority, int, descending=True), *_DOWN),
    }.items()
}
_FEW = 2000  # jobs with one label; sorting that many is fast


class JobReader:
    """Implements ports.JobLookup, and reads pages. Raises StoreUnavailable.

    A page is (rows, cursor of the next page or None). It costs three queries, and a fourth for a label.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, order: JobOrder = JobOrder.NEWEST
    ) -> tuple[Sequence[JobStanding], str | None]:
        """Pages stay stable while jobs are added. Raises Refused for a cursor of another list."""
        with self._database.read() as session:
            rows, next_cursor = _LISTINGS[order].page(session, _matching(session, where), limit=limit, cursor=cursor)
            return _standings(session, rows), next_cursor

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""
        with self._database.read() as session:
            return _standings(session, [require_job(session, job_id)])[0]

    def log_context(self, job_id: str) -> LogContext:
        """Raises NotFound."""
        with self._database.read() as session:
            row = session.execute(_LOG_CONTEXT, {"job_id": job_id}).one_or_none()
        if row is None:
            raise NotFound(f"there is no job {job_id}")
        return LogContext(project=row.project, cluster=row.cluster, newest=row.newest, at_rest=row.at_rest)

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        found: dict[str, Requested] = {}
        with self._database.read() as session:
            for ids in in_parts(job_ids):
                rows: Iterable[Any] = session.execute(_REQUESTED, {"ids": ids})
                for row in rows:
                    found[row.id] = Requested(desired=desired_of(row), newest=row.newest, stopping=row.stopping)
        return found

    def sources(self) -> Mapping[str, str]:
        with self._database.read() as session:
            return {job_id: source for job_id, source in session.execute(_SOURCES) if source}

    def awaiting(self, job_id: str) -> str | None:
        # Also jobs that have begun: they wait again after a retry.
        with self._database.read() as session:
            waiting: Iterable[Any] = session.execute(_WAITING)
            return min((name for name, spec in waiting if job_id in spec.get("after", ())), default=None)

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        """Count jobs by state. States without jobs may be left out. `projects` None means all."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        if projects is not None:
            query = query.where(JobRow.project.in_(sorted(projects)))
        with self._database.read() as session:
            return {JobState(state): count for state, count in session.execute(query).all()}


@dataclass(frozen=True, slots=True)
class _Newest:
    attempt: AttemptRow
    training: TrainingRow | None
    count: int


def _matching(session: Session, where: JobFilter) -> Select[JobRow]:
    query = select(JobRow)
    if where.state is not None:
        query = query.where(JobRow.state == where.state.value)
    if where.projects is not None:
        query = query.where(JobRow.project.in_(sorted(where.projects)))
    if where.project is not None:
        query = query.where(JobRow.project == where.project)
    if where.cluster is not None:
        query = query.where(JobRow.cluster == where.cluster)
    if where.label is not None:
        name, value = where.label
        labeled = select(JobLabelRow.job_id).where(JobLabelRow.name == name, JobLabelRow.value == value)
        if session.scalar(select(func.count()).select_from(labeled.limit(_FEW).subquery())) == _FEW:
            # With many such jobs, walking the list and checking each job is fastest. SQLite would sort all of them.
            labeled = labeled.where(JobLabelRow.job_id == JobRow.id).correlate(JobRow)
            query = query.where(labeled.exists())
        else:
            query = query.where(JobRow.id.in_(labeled))
    if where.query:
        columns = (JobRow.id, JobRow.name, JobRow.reason)
        query = query.where(or_(*(column.icontains(where.query, autoescape=True) for column in columns)))
    return query


def _standings(session: Session, jobs: Sequence[JobRow]) -> list[JobStanding]:
    ids = [row.id for row in jobs]
    newest, snapshots = _newest_attempts(session, ids), _newest_snapshots(session, ids)
    return [_standing(row, newest.get(row.id), snapshots.get(row.id)) for row in jobs]


def _standing(row: JobRow, newest: _Newest | None, snapshot: str | None) -> JobStanding:
    training = None if newest is None else newest.training
    return JobStanding(
        job=job_of(row),
        attempt=None if newest is None else attempt_of(newest.attempt),
        training=training_of(training),
        attempts=0 if newest is None else newest.count,
        world_size=None if training is None else training.world_size,
        loss=None if training is None else training.loss,
        tokens_per_s=None if training is None else training.tokens_per_s,
        newest_snapshot=snapshot,
    )


def _newest_attempts(session: Session, ids: Sequence[str]) -> dict[str, _Newest]:
    rows = session.execute(_NEWEST_ATTEMPTS, {"ids": ids})
    return {attempt.job_id: _Newest(attempt, training, count) for attempt, training, count in rows}


def _newest_snapshots(session: Session, ids: Sequence[str]) -> dict[str, str]:
    """Return the name of each job's newest committed snapshot: of the highest step, then of the latest term."""
    return {row.job_id: row.name for row in session.execute(_NEWEST_SNAPSHOTS, {"ids": ids})}


def _select_newest_attempts() -> Select[AttemptRow, TrainingRow | None, int]:
    newest = (
        select(AttemptRow.job_id, func.max(AttemptRow.number).label("number"), func.count().label("count"))
        .where(AttemptRow.job_id.in_(bindparam("ids", expanding=True)))
        .group_by(AttemptRow.job_id)
        .subquery()
    )
    return (
        select(AttemptRow, TrainingRow, newest.c.count)
        .join(newest, (newest.c.job_id == AttemptRow.job_id) & (newest.c.number == AttemptRow.number))
        .outerjoin(TrainingRow, (TrainingRow.job_id == AttemptRow.job_id) & (TrainingRow.attempt == AttemptRow.number))
    )


def _select_requested() -> Select[Any]:
    """Select what is requested, with the number of the newest attempt and whether it is stopping."""
    mine = AttemptRow.job_id == JobRow.id
    newest = select(func.max(AttemptRow.number)).where(mine).scalar_subquery()
    last = select(AttemptRow.stopping_since.is_not(None)).where(mine).order_by(AttemptRow.number.desc()).limit(1)
    columns = [column for column in JobRow.__table__.columns if column.name.startswith("desired_")]
    asked = (newest.label("newest"), func.coalesce(last.scalar_subquery(), False).label("stopping"))
    return select(JobRow.id, *columns, *asked).where(JobRow.id.in_(bindparam("ids", expanding=True)))


def _select_newest_snapshots() -> Select[str, str]:
    order = (SnapshotRow.step.desc(), SnapshotRow.attempt.desc(), SnapshotRow.generation.desc())
    ranked = (
        select(
            SnapshotRow.job_id,
            SnapshotRow.name,
            func.row_number().over(partition_by=SnapshotRow.job_id, order_by=order).label("place"),
        )
        .where(SnapshotRow.job_id.in_(bindparam("ids", expanding=True)), SnapshotRow.state == "committed")
        .subquery()
    )
    return select(ranked.c.job_id, ranked.c.name).where(ranked.c.place == 1)


# Built once, because building an expression costs more than running it.
_NEWEST_ATTEMPTS = _select_newest_attempts()
_NEWEST_SNAPSHOTS = _select_newest_snapshots()
_REQUESTED = _select_requested()

_LOG_CONTEXT = select(
    JobRow.project,
    JobRow.cluster,
    select(func.max(AttemptRow.number)).where(AttemptRow.job_id == JobRow.id).scalar_subquery().label("newest"),
    AT_REST.label("at_rest"),
).where(JobRow.id == bindparam("job_id"))
_WAITING = select(JobRow.id, JobRow.spec).where(~AT_REST)
_SOURCE = type_coerce(JobRow.spec, JSON)[("snapshot", "from")].as_string()
_SOURCES = select(JobRow.id, _SOURCE).where(~AT_REST, _SOURCE.is_not(None))
