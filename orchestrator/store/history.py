"""What a job left behind, in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import func, select

from orchestrator.ports import AttemptStanding, MetricPoint, StoredEvent, StoredSnapshot, StoredWorker
from orchestrator.store.engine import Database
from orchestrator.store.lookups import require_job
from orchestrator.store.mapping import (
    attempt_of,
    metric_point_of,
    stored_event_of,
    stored_snapshot_of,
    stored_worker_of,
    training_of,
)
from orchestrator.store.paging import Key, Listing
from orchestrator.store.tables import AttemptRow, EventRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow

Row = TypeVar("Row", AttemptRow, EventRow, SnapshotRow, WorkerRow)
Item = TypeVar("Item")

_ATTEMPTS = (Key(AttemptRow.number, int),)
_EVENTS = (Key(EventRow.id, int),)
_EVENTS_NEWEST = (Key(EventRow.id, int, descending=True),)
_SNAPSHOTS = (
    Key(SnapshotRow.step, int, descending=True),
    Key(SnapshotRow.attempt, int, descending=True),
    Key(SnapshotRow.generation, int, descending=True),
    Key(SnapshotRow.name, str),
)
_WORKERS = (Key(WorkerRow.attempt, int, descending=True), Key(WorkerRow.replica, int), Key(WorkerRow.local_rank, int))


class SqlHistoryReader:
    """Implements ports.HistoryReader. A cursor belongs to one list of one job."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def attempts(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[AttemptStanding], str | None]:
        attempts, behind = self._page(AttemptRow, _ATTEMPTS, attempt_of, job_id, limit, cursor)
        numbers = [attempt.key.number for attempt in attempts]
        with self._database.read() as session:
            wanted = (TrainingRow.job_id == job_id) & TrainingRow.attempt.in_(numbers)
            rows = {row.attempt: row for row in session.scalars(select(TrainingRow).where(wanted))}
        return [AttemptStanding(one, training_of(rows.get(one.key.number))) for one in attempts], behind

    def events(
        self, job_id: str, *, limit: int, cursor: str | None, newest_first: bool = False
    ) -> tuple[Sequence[StoredEvent], str | None]:
        order = _EVENTS_NEWEST if newest_first else _EVENTS
        return self._page(EventRow, order, stored_event_of, job_id, limit, cursor)

    def snapshots(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredSnapshot], str | None]:
        return self._page(SnapshotRow, _SNAPSHOTS, stored_snapshot_of, job_id, limit, cursor)

    def workers(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredWorker], str | None]:
        return self._page(WorkerRow, _WORKERS, stored_worker_of, job_id, limit, cursor)

    def metrics(self, job_id: str, *, since_step: int, points: int) -> Sequence[MetricPoint]:
        """Oldest step first. Of n steps, each n/points-th counted back from the newest."""
        points = max(1, points)
        with self._database.read() as session:
            require_job(session, job_id)
            wanted = (MetricRow.job_id == job_id) & (MetricRow.step > since_step)
            total = session.scalar(select(func.count()).select_from(MetricRow).where(wanted)) or 0
            query = select(MetricRow).where(wanted)
            if total > points:
                age = func.row_number().over(order_by=MetricRow.step.desc()) - 1
                ages = select(MetricRow.step, age.label("age")).where(wanted).subquery()
                # Exactly `points` of the ages below n fulfil (age * points) mod n < points; age 0 is one of them.
                kept = select(ages.c.step).where((ages.c.age * points) % total < points)
                query = query.where(MetricRow.step.in_(kept))
            return [metric_point_of(row) for row in session.scalars(query.order_by(MetricRow.step))]

    def _page(
        self,
        table: type[Row],
        order: tuple[Key, ...],
        item_of: Callable[[Row], Item],
        job_id: str,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Item], str | None]:
        direction = "down" if order[0].descending else "up"
        listing = Listing(f"{table.__tablename__}-{job_id}-{direction}", order)
        with self._database.read() as session:
            require_job(session, job_id)
            query = select(table).where(table.job_id == job_id)
            return listing.page(session, query, item_of, limit=limit, cursor=cursor)
