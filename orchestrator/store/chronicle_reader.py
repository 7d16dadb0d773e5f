"""Read what a job's accounts are computed from: its attempts, their events, and which steps still count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, exists, select
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.chronicle import KINDS, Chronicle
from orchestrator.store.engine import Database
from orchestrator.store.lookups import require_job
from orchestrator.store.mapping import attempt_of, job_of, stored_event_of
from orchestrator.store.metric_sums import read_kept
from orchestrator.store.records import Lifespan
from orchestrator.store.tables import AttemptRow, EventRow, JobRow, SnapshotRow, TrainingRow

# Plain rows: there may be tens of thousands, and building ORM objects costs more than reading.
_EVENTS = select(*EventRow.__table__.columns)
_REPORTED = select(TrainingRow.attempt).where(
    TrainingRow.job_id == bindparam("job_id"), TrainingRow.progress_at.is_not(None)
)
_TRIED = exists().where(AttemptRow.job_id == JobRow.id)
_THERE = (
    select(SnapshotRow.name).where(SnapshotRow.job_id == bindparam("job_id"), SnapshotRow.state != "deleted").limit(1)
)


class ChronicleReader:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def chronicle(self, job_id: str) -> Chronicle:
        """Read a job's chronicle in one transaction. Raises NotFound."""
        with self._database.read() as session:
            job = job_of(require_job(session, job_id))
            attempts = session.scalars(
                select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number)
            ).all()
            rows: Iterable[Any] = session.execute(
                _EVENTS.where(EventRow.job_id == job_id, EventRow.kind.in_(KINDS)).order_by(EventRow.id)
            )
            events = [stored_event_of(row).event for row in rows]
            heard = _read_heard(session, job_id)
            return Chronicle(
                job=job,
                attempts=[attempt_of(row) for row in attempts],
                events=events,
                kept=read_kept(session, job_id, events),
                heard_at={attempt: at for attempt, _, _, at in heard},
                heard_step={
                    (attempt, generation): step
                    for attempt, generation, step, _ in heard
                    if generation is not None and step is not None
                },
                reported=frozenset(session.scalars(_REPORTED, {"job_id": job_id})),
                has_snapshot=session.scalar(_THERE, {"job_id": job_id}) is not None,
            )

    def lifespans(
        self, *, since: datetime, until: datetime, projects: Collection[str] | None, limit: int
    ) -> Sequence[Lifespan]:
        """Return at most `limit` jobs of these projects (None means all) that existed between two times.

        Only jobs with an attempt: one that still waits for its first holds nothing, and thousands may wait.
        """
        query = select(JobRow.id, JobRow.updated_at, JobRow.finished_at).where(JobRow.created_at < until, _TRIED)
        if projects is not None:
            query = query.where(JobRow.project.in_(projects))
        with self._database.read() as session:
            # Two searches, because one with OR would walk through the jobs by their age.
            return [
                Lifespan(job_id=job_id, updated_at=updated_at, finished_at=finished_at)
                for lived in (JobRow.finished_at.is_(None), JobRow.finished_at > since)
                for job_id, updated_at, finished_at in session.execute(query.where(lived).limit(limit))
            ][:limit]


def _read_heard(session: Session, job_id: str) -> Sequence[tuple[int, int | None, int | None, datetime]]:
    """Return the newest step of each attempt: attempt, generation, step and time."""
    row = TrainingRow
    query = select(row.attempt, row.step_generation, row.step, row.step_at)
    query = query.where(row.job_id == job_id, row.step_at.is_not(None))
    return [
        (attempt, generation, step, at) for attempt, generation, step, at in session.execute(query) if at is not None
    ]
