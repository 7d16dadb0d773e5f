"""Deliveries to webhooks: inserted with their event, claimed by one sender at a time, then marked as done."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Exists, delete, func, insert, select, update
from sqlalchemy.orm import Session, aliased

from orchestrator.domain.access.webhook import Webhook, webhooks_for
from orchestrator.domain.job.event import Event
from orchestrator.store.dialect import store_time
from orchestrator.store.engine import Database
from orchestrator.store.mapping import stored_event_of
from orchestrator.store.records import Delivery
from orchestrator.store.tables import DeliveryRow, EventRow, JobRow

# How long a failing message holds back the later ones of its job.
_IN_ORDER_S = 600.0
_MAX_ERROR_CHARS = 500


def add_deliveries(
    session: Session, events: Sequence[tuple[int, str, Event]], subscriptions: Sequence[Webhook]
) -> None:
    """Insert the deliveries of these events (id, job, event), in the transaction that inserted the events."""
    notify = _notify(session, {job_id for _, job_id, _ in events})
    now = store_time(session)
    rows = [
        {
            "event_id": event_id,
            "job_id": job_id,
            "webhook": name,
            "message_id": _message_id(),
            "created_at": now,
            "due_at": now,
            "tries": 0,
        }
        for event_id, job_id, event in events
        for name in webhooks_for(event.kind, notify[job_id], subscriptions)
    ]
    if rows:
        session.connection().execute(insert(DeliveryRow), rows)


class OutboxStore:
    """Times are the database's. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, webhook: str, *, limit: int, hold_s: float) -> Sequence[Delivery]:
        """Return deliveries that are due. No other call gets them for `hold_s`; then they are due again.

        Only the earliest pending delivery of each job is returned, unless it is older than ten minutes.
        """
        if self.oldest_due_s(webhook) is None:
            return []  # saves a write transaction
        with self._database.write() as session:
            now = store_time(session)
            rows = session.scalars(
                select(DeliveryRow)
                .where(_is_due(webhook, now), ~_waits_for_earlier(now))
                .order_by(DeliveryRow.due_at, DeliveryRow.event_id)
                .limit(limit)
                .with_for_update(skip_locked=True)
            ).all()
            for row in rows:
                row.due_at = now + timedelta(seconds=hold_s)
                row.tries += 1
            session.flush()
            events = {
                event.id: (event, job)
                for event, job in session.execute(
                    select(EventRow, JobRow)
                    .join(JobRow, JobRow.id == EventRow.job_id)
                    .where(EventRow.id.in_([row.event_id for row in rows]))
                )
            }
            return [_delivery(row, *events[row.event_id], age_s=(now - row.created_at).total_seconds()) for row in rows]

    def delivered(self, delivery: Delivery) -> None:
        """Mark a delivery as done."""
        with self._database.write() as session:
            values = {"due_at": None, "delivered_at": store_time(session), "last_error": None}
            session.execute(update(DeliveryRow).where(DeliveryRow.id == delivery.id).values(values))

    def failed(self, delivery: Delivery, error: str, *, retry_in_s: float | None) -> None:
        """Make a delivery due again later, or abandon it if `retry_in_s` is None."""
        with self._database.write() as session:
            due_at = None if retry_in_s is None else store_time(session) + timedelta(seconds=retry_in_s)
            # If this process was suspended, another may have claimed the delivery since. Then that claim counts.
            mine = (DeliveryRow.tries == delivery.tries) & DeliveryRow.due_at.is_not(None)
            values = {"due_at": due_at, "last_error": error[:_MAX_ERROR_CHARS]}
            session.execute(update(DeliveryRow).where(DeliveryRow.id == delivery.id, mine).values(values))

    def oldest_due_s(self, webhook: str) -> float | None:
        """Return the age of the oldest delivery that is due now. None if there is none."""
        with self._database.read() as session:
            now = store_time(session)
            oldest = session.scalar(select(func.min(DeliveryRow.created_at)).where(_is_due(webhook, now)))
            return None if oldest is None else max(0.0, (now - oldest).total_seconds())

    def sweep(self, *, owed_s: float) -> int:
        """Delete deliveries still pending after `owed_s`, such as those of removed webhooks. Returns how many."""
        with self._database.write() as session:
            limit = store_time(session) - timedelta(seconds=owed_s)
            stale = DeliveryRow.due_at.is_not(None) & (DeliveryRow.created_at < limit)
            return len(session.scalars(delete(DeliveryRow).where(stale).returning(DeliveryRow.id)).all())


def _is_due(webhook: str, now: datetime) -> ColumnElement[bool]:
    return (DeliveryRow.webhook == webhook) & (DeliveryRow.due_at <= now)


def _waits_for_earlier(now: datetime) -> Exists:
    """Whether an earlier delivery of the same job is pending and not older than ten minutes."""
    earlier = aliased(DeliveryRow)
    return (
        select(earlier.id)
        .where(
            earlier.job_id == DeliveryRow.job_id,
            earlier.webhook == DeliveryRow.webhook,
            earlier.event_id < DeliveryRow.event_id,
            earlier.due_at.is_not(None),
            earlier.created_at > now - timedelta(seconds=_IN_ORDER_S),
        )
        .exists()
    )


def _notify(session: Session, job_ids: set[str]) -> dict[str, list[str]]:
    rows = session.execute(select(JobRow.id, JobRow.spec).where(JobRow.id.in_(job_ids)))
    found: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    for job_id, spec in rows:
        names = spec.get("notify")
        found[job_id] = [str(name) for name in names] if isinstance(names, list) else []
    return found


def _message_id() -> str:
    return "msg_" + base64.b32encode(secrets.token_bytes(15)).decode().lower()


def _delivery(row: DeliveryRow, event: EventRow, job: JobRow, *, age_s: float) -> Delivery:
    return Delivery(
        id=row.id,
        webhook=row.webhook,
        message_id=row.message_id,
        tries=row.tries,
        age_s=age_s,
        job={"id": job.id, "name": job.name, "project": job.project, "cluster": job.cluster},
        event=stored_event_of(event),
    )
