"""Webhooks that were created through the API."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from orchestrator.domain.access.webhook import Webhook
from orchestrator.store.dialect import insert_into
from orchestrator.store.engine import Database
from orchestrator.store.records import StoredWebhook
from orchestrator.store.tables import DeliveryRow, WebhookRow


class WebhookStore:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, webhook: StoredWebhook) -> bool:
        """Insert a webhook. Returns False if the name is taken."""
        columns = {
            "name": webhook.webhook.name,
            "host": webhook.host,
            "events": list(webhook.webhook.events),
            "all_jobs": webhook.webhook.all_jobs,
            "sealed": webhook.sealed,
            "created_at": webhook.created_at,
            "created_by": webhook.created_by,
        }
        with self._database.write() as session:
            row = insert_into(session, WebhookRow).values(columns).on_conflict_do_nothing()
            return session.scalar(row.returning(WebhookRow.name)) is not None

    def remove(self, name: str) -> bool:
        """Delete a webhook and abandon its pending deliveries. Returns whether it existed."""
        with self._database.write() as session:
            deleted = session.scalar(delete(WebhookRow).where(WebhookRow.name == name).returning(WebhookRow.name))
            pending = (DeliveryRow.webhook == name) & DeliveryRow.due_at.is_not(None)
            if deleted is not None:
                session.execute(update(DeliveryRow).where(pending).values(due_at=None, last_error="it was removed"))
            return deleted is not None

    def all(self) -> Sequence[StoredWebhook]:
        """Return all webhooks, by name."""
        with self._database.read() as session:
            return [_webhook_of(row) for row in session.scalars(select(WebhookRow).order_by(WebhookRow.name))]

    def seal_anew(self, name: str, *, old: str, new: str) -> None:
        """Replace the encrypted part, unless it has changed since it was read as `old`."""
        mine = (WebhookRow.name == name) & (WebhookRow.sealed == old)
        with self._database.write() as session:
            session.execute(update(WebhookRow).where(mine).values(sealed=new))


def _webhook_of(row: WebhookRow) -> StoredWebhook:
    return StoredWebhook(
        webhook=Webhook(name=row.name, events=tuple(row.events), all_jobs=row.all_jobs),
        host=row.host,
        sealed=row.sealed,
        created_at=row.created_at,
        created_by=row.created_by,
    )
