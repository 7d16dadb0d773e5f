"""A store with jobs and an outbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired
from orchestrator.store.engine import Database
from orchestrator.store.lookups import append_events
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.records import Delivery, JobFilter
from orchestrator.store.tables import DeliveryRow
from tests.builders import make_event, make_job, make_spec
from tests.store.harness import Stores


class World(Stores):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.outbox = OutboxStore(database)

    def submit(self, job_id: str = "job-1", *, notify: Sequence[str] = (), kind: str = "job.submitted") -> None:
        job = make_job(job_id, spec=make_spec(notify=list(notify)))
        self.jobs.add(job, idempotency_key=None, digest="d", event=make_event(kind, sentence=f"{job_id} came"))

    def happen(self, *sentences: str, job_id: str = "job-1", kind: str = "job.state", **fields: Any) -> None:
        events: list[tuple[str, Event]] = [
            (job_id, make_event(kind, sentence=sentence, **fields)) for sentence in sentences
        ]
        with self.database.write() as session:
            append_events(session, events)

    def request(self, job_id: str = "job-1") -> None:
        assert self.jobs.record_request(job_id, Desired(number=1, suspended=True), make_event("suspend.requested"))

    def owed(self, webhook: str) -> list[str]:
        """The sentences of all events that were queued for the webhook."""
        events = {stored.id: stored.event.sentence for stored in self._stored()}
        return [events[row.event_id] for row in self.rows() if row.webhook == webhook]

    def rows(self) -> list[DeliveryRow]:
        with self.database.read() as session:
            rows = list(session.scalars(select(DeliveryRow).order_by(DeliveryRow.id)))
            session.expunge_all()
            return rows

    def claim(self, webhook: str = "audit", *, limit: int = 100) -> Sequence[Delivery]:
        return self.outbox.claim(webhook, limit=limit, hold_s=60)

    def pass_time(self, seconds: float) -> None:
        """Move all times of deliveries into the past by `seconds`."""
        with self.database.write() as session:
            for row in session.scalars(select(DeliveryRow)):
                row.created_at -= timedelta(seconds=seconds)
                row.due_at = None if row.due_at is None else row.due_at - timedelta(seconds=seconds)
                row.delivered_at = None if row.delivered_at is None else row.delivered_at - timedelta(seconds=seconds)

    def _stored(self) -> list[Any]:
        jobs, _ = self.reader.summaries(JobFilter(), limit=200, cursor=None)
        return [one for job in jobs for one in self.history.events(job.id, limit=100_000, cursor=None)[0]]
