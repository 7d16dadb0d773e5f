"""Jobs as readers see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, func, or_, select
from sqlalchemy.orm import Session

from orchestrator.domain.job import JobState
from orchestrator.ports import JobFilter, JobStanding, Wished
from orchestrator.store.engine import Database
from orchestrator.store.lookups import require_job
from orchestrator.store.mapping import attempt_of, desired_of, job_of, training_of
from orchestrator.store.paging import Key, Listing
from orchestrator.store.tables import AttemptRow, JobLabelRow, JobRow, SnapshotRow, TrainingRow

_NEWEST_FIRST = Listing(
    "jobs-newest", (Key(JobRow.created_at, datetime, descending=True), Key(JobRow.id, str, descending=True))
)
_OLDEST_FIRST = Listing("jobs-oldest", (Key(JobRow.created_at, datetime), Key(JobRow.id, str)))
_FEW = 2000  # jobs with one label, which are sorted in no time

_IN_ONE_QUESTION = 500  # job ids


class SqlJobReader:
    """Implements ports.JobReader. A page costs three queries, however long it is, and one more for a label."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, newest_first: bool = True
    ) -> tuple[Sequence[JobStanding], str | None]:
        listing = _NEWEST_FIRST if newest_first else _OLDEST_FIRST
        with self._database.read() as session:
            rows, behind = listing.page(session, _matching(session, where), _itself, limit=limit, cursor=cursor)
            return _standings(session, rows), behind

    def standing(self, job_id: str) -> JobStanding:
        with self._database.read() as session:
            return _standings(session, [require_job(session, job_id)])[0]

    def wished(self, job_ids: Collection[str]) -> Mapping[str, Wished]:
        found: dict[str, Wished] = {}
        ids = sorted(job_ids)
        with self._database.read() as session:
            for start in range(0, len(ids), _IN_ONE_QUESTION):
                rows: Iterable[Any] = session.execute(_WISHED, {"ids": ids[start : start + _IN_ONE_QUESTION]})
                for row in rows:
                    found[row.id] = Wished(desired=desired_of(row), newest=row.newest, stopping=row.stopping)
        return found

    def count_by_state(self) -> Mapping[JobState, int]:
        with self._database.read() as session:
            rows = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all()
            return {JobState(state): count for state, count in rows}


@dataclass(frozen=True, slots=True)
class _Newest:
    attempt: AttemptRow
    training: TrainingRow | None
    count: int


def _itself(row: JobRow) -> JobRow:
    return row


def _matching(session: Session, where: JobFilter) -> Select[JobRow]:
    query = select(JobRow)
    if where.state is not None:
        query = query.where(JobRow.state == where.state.value)
    if where.project is not None:
        query = query.where(JobRow.project == where.project)
    if where.cluster is not None:
        query = query.where(JobRow.cluster == where.cluster)
    if where.label is not None:
        name, value = where.label
        labelled = select(JobLabelRow.job_id).where(JobLabelRow.name == name, JobLabelRow.value == value)
        if session.scalar(select(func.count()).select_from(labelled.limit(_FEW).subquery())) == _FEW:
            # Most pages are found by walking the list and asking each job; SQLite would rather sort all of them.
            labelled = labelled.where(JobLabelRow.job_id == JobRow.id).correlate(JobRow)
            query = query.where(labelled.exists())
        else:
            query = query.where(JobRow.id.in_(labelled))
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
    """The newest committed snapshot's name by job: by step, and of one step by the later term."""
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


def _select_wished() -> Select[Any]:
    """What is wished of some jobs, with the number of the newest attempt and whether that was asked to end."""
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


# Built once: building an expression costs more than running it.
_NEWEST_ATTEMPTS = _select_newest_attempts()
_NEWEST_SNAPSHOTS = _select_newest_snapshots()
_WISHED = _select_wished()
