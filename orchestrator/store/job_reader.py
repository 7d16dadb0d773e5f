"""Read jobs: pages, single jobs, and what is requested of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Executable, Select, Text, bindparam, cast, func, select

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.dependents import Needs
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.job_summary import JobSummary
from orchestrator.ports.jobs import JobStanding, Requested
from orchestrator.store.engine import Database
from orchestrator.store.job_pages import read_page
from orchestrator.store.job_summaries import (
    JOBS,
    count_attempts,
    select_jobs,
    select_newest_snapshot,
    select_summaries,
    summaries_of,
)
from orchestrator.store.lookups import AT_REST, in_parts, select_at_work
from orchestrator.store.mapping import attempt_of, desired_of, job_of, training_of
from orchestrator.store.records import JobFilter, JobOrder, LogContext
from orchestrator.store.tables import AttemptRow, JobRow, TrainingRow

Found = TypeVar("Found")
_THIS = JobRow.id == bindparam("job_id")


class JobReader:
    """Implements ports.JobLookup, and reads pages. Raises StoreUnavailable.

    Each method sends one statement. Searches and some filters of lists send a second one, and long lists of ids
    are split.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def summaries(
        self, where: JobFilter, *, limit: int, cursor: str | None, order: JobOrder = JobOrder.NEWEST
    ) -> tuple[Sequence[JobSummary], str | None]:
        """Return a page and the cursor of the next one, None at the end. Pages stay stable while jobs are added.

        Raises Refused for a cursor of another list.
        """
        with self._database.ask() as connection:
            return read_page(connection, where, order=order, limit=limit, cursor=cursor)

    def summary(self, job_id: str) -> JobSummary:
        """Raises NotFound."""
        with self._database.ask() as connection:
            found = summaries_of(connection.execute(_SUMMARY, {"job_id": job_id}))
        return _only(found, job_id)

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""
        row = self._find(_STANDING, job_id)
        attempt: AttemptRow | None = row.AttemptRow
        training: TrainingRow | None = row.TrainingRow
        return JobStanding(
            job=job_of(row.JobRow),
            attempt=None if attempt is None else attempt_of(attempt),
            training=training_of(training),
            attempts=row.attempts,
            world_size=None if training is None else training.world_size,
            loss=None if training is None else training.loss,
            tokens_per_s=None if training is None else training.tokens_per_s,
            newest_snapshot=row.newest_snapshot,
        )

    def log_context(self, job_id: str) -> LogContext:
        """Raises NotFound."""
        row = self._find(_LOG_CONTEXT, job_id)
        return LogContext(project=row.project, cluster=row.cluster, newest=row.newest, at_rest=row.at_rest)

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        found: dict[str, Requested] = {}
        with self._database.ask() as connection:
            for ids in in_parts(job_ids):
                rows: Iterable[Any] = connection.execute(_REQUESTED, {"ids": ids})
                for row in rows:
                    found[row.id] = Requested(desired=desired_of(row), newest=row.newest, stopping=row.stopping)
        return found

    def dependents(self, job_id: str) -> Sequence[Needs]:
        with self._database.ask() as connection:
            rows: Sequence[Any] = connection.execute(_MENTIONING, {"job_id": job_id}).all()
        return [
            Needs(job_id=name, after=spec.get("after", ()), source=spec.get("snapshot", {}).get("from"))
            for name, spec in rows
        ]

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        """Count jobs by state. States without jobs may be left out. `projects` None means all."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        if projects is not None:
            query = query.where(JobRow.project.in_(sorted(projects)))
        with self._database.read() as session:
            return {JobState(state): count for state, count in session.execute(query).all()}

    def _find(self, query: Executable, job_id: str) -> Any:
        with self._database.read() as session:
            rows: Sequence[Any] = session.execute(query, {"job_id": job_id}).all()
        return _only(rows, job_id)


def _only(found: Sequence[Found], job_id: str) -> Found:
    if not found:
        raise NotFound(f"there is no job {job_id}")
    return found[0]


def _select_requested() -> Select[Any]:
    """Select what is requested, with the number of the newest attempt and whether it is to end or has ended."""
    mine = AttemptRow.job_id == JobRow.id
    newest = select(func.max(AttemptRow.number)).where(mine).scalar_subquery()
    is_over = AttemptRow.stopping_since.is_not(None) | AttemptRow.ended_at.is_not(None)
    last = select(is_over).where(mine).order_by(AttemptRow.number.desc()).limit(1)
    columns = [column for column in JobRow.__table__.columns if column.name.startswith("desired_")]
    asked = (newest.label("newest"), func.coalesce(last.scalar_subquery(), False).label("stopping"))
    return select(JobRow.id, *columns, *asked).where(JobRow.id.in_(bindparam("ids", expanding=True)))


def _select_standing() -> Select[JobRow, AttemptRow, TrainingRow, int, str]:
    newest = select(func.max(AttemptRow.number)).where(AttemptRow.job_id == JobRow.id).correlate(JobRow)
    is_newest = (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == newest.scalar_subquery())
    is_its = (TrainingRow.job_id == AttemptRow.job_id) & (TrainingRow.attempt == AttemptRow.number)
    extras = (count_attempts(JOBS).label("attempts"), select_newest_snapshot(JOBS).label("newest_snapshot"))
    joined = select(JobRow, AttemptRow, TrainingRow, *extras).select_from(JobRow).outerjoin(AttemptRow, is_newest)
    return joined.outerjoin(TrainingRow, is_its).where(_THIS)


# Built once, because building an expression costs more than running it.
_SUMMARY = select_summaries(select_jobs().where(_THIS).limit(1).subquery("job"))
_STANDING = _select_standing()
_REQUESTED = _select_requested()

_LOG_CONTEXT = select(
    JobRow.project,
    JobRow.cluster,
    select(func.max(AttemptRow.number)).where(AttemptRow.job_id == JobRow.id).scalar_subquery().label("newest"),
    AT_REST.label("at_rest"),
).where(_THIS)
# A search of the text is far cheaper than parsing each spec. Jobs that run are included: after a retry they wait again.
# Materialized, because PostgreSQL would search the texts first, those of ended jobs too.
_AT_WORK = select_at_work(select(JobRow.id, JobRow.spec)).cte("at_work").prefix_with("MATERIALIZED")
_MENTIONING = select(_AT_WORK).where(cast(_AT_WORK.c.spec, Text).contains(bindparam("job_id")))
