"""Webhooks, and what they are owed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from orchestrator.domain.access.webhook import Webhook
from orchestrator.ports.history import StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event that is owed to one webhook, claimed for its `tries`-th try."""

    id: int
    webhook: str
    message_id: str  # the same over all tries
    tries: int
    age_s: float  # since the event was written
    job: Mapping[str, str]  # id, name, project, cluster
    event: StoredEvent


class OutboxStore(Protocol):
    """The store as the outbox sees it. Times are the store's own. Raises StoreUnavailable."""

    def claim(self, webhook: str, *, limit: int, hold_s: float) -> Sequence[Delivery]:
        """Deliveries that are due; nobody else gets them for `hold_s`, then they are due again.

        Of a job only the earliest that is owed, unless that one has failed for ten minutes.
        """

    def delivered(self, delivery: Delivery) -> None:
        """It is owed no more."""

    def failed(self, delivery: Delivery, error: str, *, retry_in_s: float | None) -> None:
        """Owed again later; None: given up. One that was claimed again since is left alone."""

    def oldest_due_s(self, webhook: str) -> float | None:
        """The age of the oldest that is due now; None: nothing is."""

    def sweep(self, *, owed_s: float) -> int:
        """Forget what is still owed after `owed_s`: nobody delivers for a webhook that is gone. Returns how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhook:
    """A webhook that was made by request: `sealed` holds its URL and the key that signs."""

    webhook: Webhook
    host: str
    sealed: str = field(repr=False)
    created_at: datetime
    created_by: str


class WebhookStore(Protocol):
    """Webhooks that were made by request. Raises StoreUnavailable."""

    def add(self, webhook: StoredWebhook) -> bool:
        """False where there is one of that name."""

    def remove(self, name: str) -> bool:
        """Whether it was there. What it was owed is given up."""

    def all(self) -> Sequence[StoredWebhook]:
        """By name."""

    def seal_anew(self, name: str, *, old: str, new: str) -> None:
        """Replace what is sealed, where nobody has in between."""
