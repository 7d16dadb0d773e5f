"""Read what a job's accounts are computed from: its attempts, their events, and which steps still count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, case, exists, func, select, true
from sqlalchemy.orm import defer

from orchestrator.domain.accounting.chronicle import KINDS, Chronicle
from orchestrator.domain.errors import NotFound
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.engine import Database
from orchestrator.store.mapping import attempt_of, job_of, stored_event_of, stored_of
from orchestrator.store.metric_sums import read_kept
from orchestrator.store.records import Lifespan
from orchestrator.store.tables import AttemptRow, EventRow, JobRow, SnapshotRow, TrainingRow

# Plain rows: there may be tens of thousands, and building ORM objects costs more than reading.
_EVENTS = select(*EventRow.__table__.columns)
_TRIED = exists().where(AttemptRow.job_id == JobRow.id)
_THERE = select(SnapshotRow.name).where(SnapshotRow.job_id == JobRow.id, SnapshotRow.state != "deleted")
_COMMITTED = (SnapshotRow.job_id == JobRow.id) & (SnapshotRow.state == "committed")
_NEWEST_STEP = select(func.max(SnapshotRow.step)).where(_COMMITTED).correlate(JobRow).scalar_subquery()
_NEWEST = select(func.max(AttemptRow.number)).where(AttemptRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
_ITS_TRAINING = (TrainingRow.job_id == AttemptRow.job_id) & (TrainingRow.attempt == AttemptRow.number)
_OF_TRAINING = ("step_generation", "step", "step_at", "progress_at", "stored")
# One row for each attempt, oldest first. Only the last row has the spec, which may be large.
_ATTEMPTS = (
    select(
        JobRow,
        case((func.coalesce(AttemptRow.number == _NEWEST, true()), JobRow.spec)).label("spec"),
        AttemptRow,
        *(getattr(TrainingRow, name) for name in _OF_TRAINING),
        _THERE.correlate(JobRow).exists().label("has_snapshot"),
        _NEWEST_STEP.label("snapshot_step"),
    )
    .options(defer(JobRow.spec))
    .outerjoin(AttemptRow, AttemptRow.job_id == JobRow.id)
    .outerjoin(TrainingRow, _ITS_TRAINING)
    .where(JobRow.id == bindparam("job_id"))
    .order_by(AttemptRow.number)
)


class ChronicleReader:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def chronicle(self, job_id: str) -> Chronicle:
        """Read a job's chronicle in one transaction. Raises NotFound."""
        with self._database.read() as session:
            rows: Sequence[Any] = session.execute(_ATTEMPTS, {"job_id": job_id}).all()
            if not rows:
                raise NotFound(f"there is no job {job_id}")
            found: Iterable[Any] = session.execute(
                _EVENTS.where(EventRow.job_id == job_id, EventRow.kind.in_(KINDS)).order_by(EventRow.id)
            )
            events = [stored_event_of(row).event for row in found]
            tried = [row for row in rows if row.AttemptRow is not None]
            is_thin = stored_of(rows[-1].stored).level() > 0
            return Chronicle(
                job=job_of(rows[-1].JobRow, JobSpec.model_validate(rows[-1].spec)),
                attempts=[attempt_of(row.AttemptRow) for row in tried],
                events=events,
                kept=read_kept(session, job_id, events, is_thin=is_thin),
                heard_at={row.AttemptRow.number: row.step_at for row in tried if row.step_at is not None},
                heard_step={
                    (row.AttemptRow.number, row.step_generation): row.step
                    for row in tried
                    if None not in (row.step_at, row.step_generation, row.step)
                },
                reported=frozenset(row.AttemptRow.number for row in tried if row.progress_at is not None),
                has_snapshot=rows[-1].has_snapshot,
                snapshot_step=rows[-1].snapshot_step,
            )

    def lifespans(
        self, *, since: datetime, until: datetime, projects: Collection[str] | None, limit: int
    ) -> Sequence[Lifespan]:
        """Return at most `limit` jobs of these projects (None means all) that existed between two times.

        Only jobs with an attempt: one that still waits for its first holds nothing, and thousands may wait.
        """
        query = select(JobRow.id, JobRow.updated_at, JobRow.finished_at).where(JobRow.created_at < until, _TRIED)
        if projects is not None:
            # The project is no search condition here: SQLite would read the whole history of the project.
            query = query.where(func.coalesce(JobRow.project, "").in_(projects))
        with self._database.read() as session:
            # Two searches, because the database would answer one search with OR by reading all jobs.
            return [
                Lifespan(job_id=job_id, updated_at=updated_at, finished_at=finished_at)
                for lived in (JobRow.finished_at.is_(None), JobRow.finished_at > since)
                for job_id, updated_at, finished_at in session.execute(query.where(lived).limit(limit))
            ][:limit]
