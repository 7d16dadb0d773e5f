"""Events of all jobs in the order of their ids, for followers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select

from orchestrator.store.engine import Database
from orchestrator.store.records import EventNotice
from orchestrator.store.tables import EventRow, JobRow

_NEWEST = select(func.coalesce(func.max(EventRow.id), 0))
_AFTER = (
    select(EventRow.id, EventRow.job_id, EventRow.kind, EventRow.at, JobRow.project)
    .join(JobRow, JobRow.id == EventRow.job_id)
    .where(EventRow.id > bindparam("after"))
    .order_by(EventRow.id)
    .limit(bindparam("limit"))
)


class EventReader:
    """The events of all jobs. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest(self) -> int:
        """Return the id of the newest event, 0 if there is none."""
        with self._database.read() as session:
            return session.scalar(_NEWEST) or 0

    def after(self, event_id: int, *, limit: int) -> Sequence[EventNotice]:
        """Return events with higher ids, in order. Ids become visible in rising order, so none is missed."""
        with self._database.read() as session:
            rows = session.execute(_AFTER, {"after": event_id, "limit": limit}).all()
            return [
                EventNotice(id=row.id, job_id=row.job_id, project=row.project, kind=row.kind, at=row.at) for row in rows
            ]
