"""Leases in the store in memory."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime, timedelta

from orchestrator.domain.queueing.lease import Lease, LeaseStanding, Renewal
from orchestrator.domain.queueing.sharing import choose_successor, may_request
from orchestrator.ports.clock import Clock
from orchestrator.simulator.memory_store import MemoryStore


class MemoryLeaseStore:
    """Implements ports.LeaseStore. Its clock is the store's. It knows only requests that were made by this object."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._since: dict[Lease, datetime] = {}
        self._requests: dict[str, tuple[str, datetime]] = {}  # by cluster, with their ends

    def acquire(self, cluster: str, holder: str, *, ttl_s: float, given_up: Set[str] = frozenset()) -> Lease | None:
        leases, now = self._store.answering().leases, self._clock.now()
        last, until = leases.get(cluster, (Lease(cluster=cluster, holder=holder, token=0), now))
        if last.holder != holder and until > now:
            if may_request(self.leases(), cluster, holder, given_up, now):
                self._requests[cluster] = (holder, now + timedelta(seconds=ttl_s / 2))
            return None
        return self._assign(last, holder, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> Renewal | None:
        leases, now = self._store.answering().leases, self._clock.now()
        last, until = leases.get(lease.cluster, (None, now))
        if last != lease or until <= now:
            return None
        leases[lease.cluster] = (lease, now + timedelta(seconds=ttl_s))
        return Renewal(requested=self._requester(lease.cluster) is not None)

    def hand_over(self, lease: Lease, *, ttl_s: float) -> bool:
        successor = choose_successor(self.leases(), lease)
        if successor is not None:
            self._assign(lease, successor, ttl_s)
        elif self._store.answering().leases.get(lease.cluster, (None, None))[0] == lease:
            self._requests.pop(lease.cluster, None)
        return successor is not None

    def release(self, lease: Lease) -> None:
        leases = self._store.answering().leases
        if leases.get(lease.cluster, (None, None))[0] == lease:
            leases[lease.cluster] = (lease, self._clock.now())
        self._requests = {name: each for name, each in self._requests.items() if each[0] != lease.holder}

    def leases(self) -> Sequence[LeaseStanding]:
        now = self._clock.now()
        return [
            LeaseStanding(
                lease=lease,
                since=self._since.get(lease),
                expires_at=until,
                expired=until <= now,
                requester=self._requester(lease.cluster),
            )
            for lease, until in self._store.answering().leases.values()
        ]

    def _requester(self, cluster: str) -> str | None:
        requester, until = self._requests.get(cluster, (None, self._clock.now()))
        return requester if until > self._clock.now() else None

    def _assign(self, last: Lease, holder: str, ttl_s: float) -> Lease:
        now, lease = self._clock.now(), Lease(cluster=last.cluster, holder=holder, token=last.token + 1)
        self._store.answering().leases[lease.cluster] = (lease, now + timedelta(seconds=ttl_s))
        self._since = {**self._since, lease: now}
        self._requests.pop(lease.cluster, None)
        return lease
