"""Owners' requests in the simulated world."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.domain.errors import NotFound, Refused, Unavailable
from orchestrator.domain.job.job import Job
from orchestrator.wire.job_requests import RetryRequest
from tests.property.world import World


class Owners:
    """Each request is accepted or refused as in the API. The ledger counts those that may end an attempt."""

    def __init__(self, world: World) -> None:
        self._world = world

    def cancel(self, job: Job) -> None:
        self._request(job, lambda: self._world.commands.cancel(job.id))

    def suspend(self, job: Job) -> None:
        self._request(job, lambda: self._world.commands.suspend(job.id))

    def resume(self, job: Job) -> None:
        self._request(job, lambda: self._world.commands.resume(job.id))

    def snapshot(self, job: Job) -> None:
        self._request(job, lambda: self._world.commands.snapshot(job.id))

    def scale(self, job: Job, nodes: str) -> None:
        self._request(job, lambda: self._world.commands.scale(job.id, nodes))

    def retry(self, job: Job, *, nodes: str | None = None, back: int | None = None) -> None:
        """`back`: restore the snapshot that is this many before the newest one that counts."""
        oracle = self._world.oracle(job.id)
        known = [] if oracle is None else oracle.counted
        named = str(known[-1 - back % len(known)]) if back is not None and known else None
        patch = None if nodes is None else {"topology": {"nodes": nodes}}
        request = RetryRequest(restore_from=named, patch=patch)
        self._request(job, lambda: self._world.commands.retry(job.id, request))

    def _request(self, job: Job, request: Callable[[], object]) -> None:
        before = self._world.job(job.id)
        try:
            request()
        except (Refused, NotFound, Unavailable):
            return
        after = self._world.job(job.id)
        if after.desired.number != before.desired.number:
            self._world.ledger.requested[job.id] += after.desired.snapshot_number == before.desired.snapshot_number
