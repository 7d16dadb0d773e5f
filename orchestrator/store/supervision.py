"""Status: the store as the supervisor sees it. Never writes a wish or a spec."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, select, text, tuple_, union, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.domain.attempt import Attempt, AttemptKey
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.job import JobState
from orchestrator.ports import Change, Supervised
from orchestrator.store.engine import Database
from orchestrator.store.lookups import append_events, exits_of, require_job
from orchestrator.store.mapping import attempt_columns, attempt_of, job_of, status_columns, training_of
from orchestrator.store.tables import AttemptRow, JobRow, JournalRow, ReservationRow, TrainingRow

_LIVE = tuple(state.value for state in JobState if not state.terminal)
# Each lost race means that another process took a port; more losses in a row than this are no race.
_RACES = 64


class SqlSupervisorStore:
    """Implements ports.SupervisorStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def supervised(self, cluster: str) -> Sequence[Supervised]:
        """Oldest job first. Two queries, however many jobs there are."""
        with self._database.read() as session:
            newest = (
                select(AttemptRow.job_id, func.max(AttemptRow.number).label("number"))
                .join(JobRow, JobRow.id == AttemptRow.job_id)
                .where(_not_at_rest(cluster))
                .group_by(AttemptRow.job_id)
                .subquery()
            )
            rows = session.execute(
                select(JobRow, AttemptRow, TrainingRow)
                .outerjoin(newest, newest.c.job_id == JobRow.id)
                .outerjoin(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == newest.c.number))
                .outerjoin(TrainingRow, (TrainingRow.job_id == JobRow.id) & (TrainingRow.attempt == newest.c.number))
                .where(_not_at_rest(cluster))
                .order_by(JobRow.created_at, JobRow.id)
            ).all()
            exits = exits_of(
                session.scalars(
                    select(JournalRow).join(
                        newest, (newest.c.job_id == JournalRow.job_id) & (newest.c.number == JournalRow.attempt)
                    )
                )
            )
            return [
                Supervised(
                    job=job_of(job),
                    attempt=None if attempt is None else attempt_of(attempt),
                    training=training_of(training),
                    exits={} if attempt is None else exits.get((attempt.job_id, attempt.number), {}),
                )
                for job, attempt, training in rows
            ]

    def apply(self, change: Change) -> None:
        """Raises NotFound for an unknown job. Repeating a change repeats its events, so apply each once."""
        job = change.job
        with self._database.write() as session:
            written = session.scalars(
                update(JobRow).where(JobRow.id == job.id).values(status_columns(job)).returning(JobRow.id)
            ).all()
            if not written:
                raise NotFound(f"there is no job {job.id}")
            if change.attempt is not None:
                _write_attempt(session, change.attempt)
            if job.state.terminal:
                # Also a port that was reserved for an attempt which a crash kept from being written down.
                session.execute(delete(ReservationRow).where(ReservationRow.job_id == job.id))
            append_events(session, [(job.id, event) for event in change.events])

    def note(self, job_id: str, reason: str, now: datetime) -> None:
        with self._database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(reason=reason, updated_at=now))

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        """Raises NotFound for an unknown job."""
        for _ in range(_RACES):
            try:
                with self._database.write() as session:
                    return _reserve(session, key, cluster, candidates, after)
            except IntegrityError:
                continue  # another process reserved the port, or for this attempt, since we looked
        raise Refused(f"cluster {cluster}: other services took each port that was tried for {key}; it is tried again")


def _not_at_rest(cluster: str) -> ColumnElement[bool]:
    # Two searches, each with its index (the second is written as the partial one is): a long history of ended jobs
    # costs nothing.
    here = select(JobRow.id).where(JobRow.cluster == cluster)
    retry_wished = text("desired_retry_number > retries_done")
    return JobRow.id.in_(union(here.where(JobRow.state.in_(_LIVE)), here.where(retry_wished)))


def _write_attempt(session: Session, attempt: Attempt) -> None:
    row = session.get(AttemptRow, (attempt.key.job_id, attempt.key.number))
    if row is None:
        row = AttemptRow(job_id=attempt.key.job_id, number=attempt.key.number)
        session.add(row)
        for name, value in attempt_columns(attempt).items():
            setattr(row, name, value)
        session.flush()
        session.add(TrainingRow(job_id=attempt.key.job_id, attempt=attempt.key.number, restarts=0))
    else:
        for name, value in attempt_columns(attempt).items():
            setattr(row, name, value)
    if attempt.state.terminal:
        session.execute(delete(ReservationRow).where(_reservation_of(attempt.key)))
    session.flush()


def _reserve(session: Session, key: AttemptKey, cluster: str, candidates: range, after: int | None) -> int:
    require_job(session, key.job_id)
    held = session.scalar(select(ReservationRow.port).where(_reservation_of(key)))
    if held is not None:
        return held
    taken = set(session.scalars(select(ReservationRow.port).where(ReservationRow.cluster == cluster)))
    above = [port for port in candidates if after is None or port > after]
    below = [port for port in candidates if after is not None and port <= after]
    free = next((port for port in (*above, *below) if port not in taken), None)
    if free is None:
        raise Refused(
            f"cluster {cluster}: all {len(candidates)} rendezvous ports are taken; "
            "end some jobs or widen ORCHESTRATOR_RENDEZVOUS_PORTS"
        )
    session.add(ReservationRow(job_id=key.job_id, attempt=key.number, cluster=cluster, port=free))
    session.flush()
    return free


def _reservation_of(key: AttemptKey) -> ColumnElement[bool]:
    return tuple_(ReservationRow.job_id, ReservationRow.attempt) == (key.job_id, key.number)
