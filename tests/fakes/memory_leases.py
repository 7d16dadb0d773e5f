"""Leases in the store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from orchestrator.domain.queueing.lease import Lease, LeaseStanding
from orchestrator.ports.clock import Clock
from orchestrator.simulator.memory_store import MemoryStore


class MemoryLeaseStore:
    """Implements ports.LeaseStore. Its clock is the store's."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def acquire(self, cluster: str, holder: str, *, ttl_s: float) -> Lease | None:
        leases, now = self._store.answering().leases, self._clock.now()
        last, until = leases.get(cluster, (Lease(cluster=cluster, holder=holder, token=0), now))
        if last.holder != holder and until > now:
            return None
        lease = Lease(cluster=cluster, holder=holder, token=last.token + 1)
        leases[cluster] = (lease, now + timedelta(seconds=ttl_s))
        return lease

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        leases, now = self._store.answering().leases, self._clock.now()
        last, until = leases.get(lease.cluster, (None, now))
        if last != lease or until <= now:
            return False
        leases[lease.cluster] = (lease, now + timedelta(seconds=ttl_s))
        return True

    def release(self, lease: Lease) -> None:
        leases = self._store.answering().leases
        if leases.get(lease.cluster, (None, None))[0] == lease:
            leases[lease.cluster] = (lease, self._clock.now())

    def leases(self) -> Sequence[LeaseStanding]:
        now = self._clock.now()
        return [
            LeaseStanding(lease=lease, expires_at=until, expired=until <= now)
            for lease, until in self._store.answering().leases.values()
        ]
