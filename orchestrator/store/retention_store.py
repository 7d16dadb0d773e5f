"""Delete what ended jobs left in the database, and find out whether their run directories are still needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import JSON, ColumnElement, delete, exists, func, select, true, tuple_, type_coerce, update
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.chronicle import KINDS
from orchestrator.domain.accounting.retention import DataKind
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.store.engine import Database
from orchestrator.store.lookups import AT_REST, append_events, select_at_work
from orchestrator.store.mapping import stored_event_of
from orchestrator.store.metric_sums import MOST_SUMS, SUMS, has_thin_metrics, read_rows, read_sums, render_sums
from orchestrator.store.records import EndedJob, EndedJobs
from orchestrator.store.tables import DeliveryRow, EventRow, JobRow, MetricRow, SnapshotRow

_SPEC = type_coerce(JobRow.spec, JSON)
_STAY = KINDS | {EventKind.JOB_SUBMITTED.value}
_HOLDS: Mapping[DataKind, ColumnElement[bool]] = {
    DataKind.METRICS: exists().where(MetricRow.job_id == JobRow.id).correlate(JobRow),
    DataKind.EVENTS: exists().where(EventRow.job_id == JobRow.id, EventRow.kind.not_in(_STAY)).correlate(JobRow),
    DataKind.LOGS: true(),  # the run directory knows
    DataKind.FOLDER: true(),
}


class RetentionStore:
    """Raises StoreUnavailable.

    A job is at rest if it has ended and no retry is requested. `forget_*` deletes at most `limit` rows and returns how
    many. It deletes nothing of a job that is not at rest. Idempotent.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def ended(
        self, cluster: str, kind: DataKind, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> EndedJobs:
        """Look at the next `limit` jobs that ended before a time, earliest first, after the key `after` (end, id).

        Returns those at rest on the cluster, without those that have no row of this kind of data.
        """
        # All clusters' jobs are looked at: the history of another one must not be walked in a single statement.
        wanted = (JobRow.cluster == cluster) & AT_REST & _HOLDS[kind]
        query = select(JobRow.id, JobRow.finished_at, wanted).where(JobRow.finished_at < before)
        if after is not None:
            query = query.where(tuple_(JobRow.finished_at, JobRow.id) > after)
        query = query.order_by(JobRow.finished_at, JobRow.id).limit(limit)
        with self._database.read() as session:
            found = session.execute(query).all()
        jobs = [EndedJob(job_id=job_id, finished_at=at) for job_id, at, is_wanted in found if at and is_wanted]
        return EndedJobs(jobs=jobs, last=(found[-1].finished_at, found[-1].id) if found else None)

    def is_needed(self, job_id: str) -> bool:
        """Whether the job is not at rest, or another job that is not at rest starts from its snapshots."""
        source = _SPEC["snapshot"]["from"].as_string()
        with self._database.read() as session:
            at_rest = session.scalar(select(func.count()).where(JobRow.id == job_id, AT_REST))
            used = select_at_work(select(JobRow.id).where(source.contains(job_id, autoescape=True)))
            return not at_rest or session.scalar(used.limit(1)) is not None

    def add_event(self, job_id: str, event: Event) -> None:
        with self._database.write() as session:
            append_events(session, [(job_id, event)])

    def forget_metrics(self, job_id: str, event: Event, *, limit: int) -> int:
        """Delete metrics. The event is written with the sums that accounts need of them."""
        with self._database.write() as session:
            first = select(MetricRow.step, MetricRow.attempt).where(MetricRow.job_id == job_id).order_by(MetricRow.step)
            found = session.execute(first.limit(limit)).all() if _is_at_rest(session, job_id) else []
            if not found or not _sum_up(session, job_id, event, newest=max(row.attempt for row in found)):
                return 0
            steps = [row.step for row in found]
            session.execute(delete(MetricRow).where(MetricRow.job_id == job_id, MetricRow.step.in_(steps)))
            append_events(session, [(job_id, event)] if event.evidence else [])
            return len(found)

    def forget_events(self, job_id: str, *, limit: int) -> int:
        """Delete events, except those that `why` and the accounts need."""
        with self._database.write() as session:
            if not _is_at_rest(session, job_id):
                return 0
            lesser = (EventRow.job_id == job_id) & EventRow.kind.not_in(_STAY)
            ids = session.scalars(select(EventRow.id).where(lesser).order_by(EventRow.id).limit(limit)).all()
            session.execute(delete(EventRow).where(EventRow.id.in_(ids)))
            return len(ids)

    def forget_snapshots(self, job_id: str) -> None:
        """Mark all snapshots of the job as deleted."""
        with self._database.write() as session:
            session.execute(update(SnapshotRow).where(SnapshotRow.job_id == job_id).values(state="deleted"))

    def forget_deliveries(self, *, before: datetime, limit: int) -> int:
        """Delete deliveries from before a time that were delivered or abandoned."""
        with self._database.write() as session:
            over = (DeliveryRow.due_at.is_(None)) & (DeliveryRow.created_at < before)
            ids = session.scalars(
                select(DeliveryRow.id).where(over).order_by(DeliveryRow.created_at).limit(limit)
            ).all()
            session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(ids)))
            return len(ids)

    def oldest_live(self) -> datetime | None:
        """Return when the oldest job that is not at rest, on any cluster, was submitted."""
        with self._database.read() as session:
            return min(session.scalars(select_at_work(select(JobRow.created_at))), default=None)

    def workdirs(self, *, since: datetime) -> Collection[str]:
        """Return the working folders of the jobs that are not at rest or ended after `since`."""
        workdir = _SPEC["run"]["workdir"].as_string()
        with self._database.read() as session:
            queries = (select_at_work(select(workdir)), select(workdir).where(JobRow.finished_at >= since))
            return {path for query in queries for path in session.scalars(query) if path is not None}


def _is_at_rest(session: Session, job_id: str) -> bool:
    """Whether the job is at rest. Locks its row, so that a retry request waits for this transaction."""
    return session.scalar(select(JobRow.id).where(JobRow.id == job_id, AT_REST).with_for_update()) is not None


def _sum_up(session: Session, job_id: str, event: Event, *, newest: int) -> bool:
    """Put the sums of the job's metrics into the event's evidence, unless an earlier event has them up to `newest`.

    Returns False if there are too many sums; then the metrics must stay.
    """
    after = max((attempt for attempt, _ in read_sums(_events(session, job_id, {EventKind.REMOVED.value}))), default=0)
    if newest <= after:
        return True
    is_thin = has_thin_metrics(session, job_id)
    sums = read_rows(session, job_id, _events(session, job_id, KINDS), after=after, is_thin=is_thin)
    if sums:
        event.evidence[SUMS] = render_sums(sums)
    return len(sums) <= MOST_SUMS


def _events(session: Session, job_id: str, kinds: Collection[str]) -> list[Event]:
    mine = (EventRow.job_id == job_id) & EventRow.kind.in_(kinds)
    return [stored_event_of(row).event for row in session.scalars(select(EventRow).where(mine).order_by(EventRow.id))]
