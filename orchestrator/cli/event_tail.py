"""The events of a job as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator

from orchestrator.cli.common import OUTAGE_S
from orchestrator.client import Client
from orchestrator.wire.job_views import EventView, JobView

LOOK_EVERY_S = 0.5


class EventTail:
    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._cursor: str | None = None
        self._last = 0

    def new(self) -> Iterator[EventView]:
        """Yield the events since the last call, at first all."""
        while True:
            page = self._client.events_page(self._job_id, cursor=self._cursor, patience_s=OUTAGE_S)
            for event in page.items:
                if event.id > self._last:
                    self._last = event.id
                    yield event
            if page.next_cursor is None:
                return
            self._cursor = page.next_cursor

    def follow(self, job: JobView) -> Iterator[EventView]:
        """Yield the events since the last call, and new ones until the job has ended."""
        while True:
            yield from self.new()
            if job.ended:
                return
            time.sleep(LOOK_EVERY_S)
            job = self._client.job(job.id, patience_s=OUTAGE_S)
