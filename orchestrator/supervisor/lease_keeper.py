"""Take, renew, hand over and release the lease of a cluster. Only its holder supervises the cluster.

A separate thread renews the lease, so that a slow call to the scheduler does not lose it. It renews only while passes
make progress. A process that was paused beyond its lease notices here before it changes the cluster. The store also
refuses its writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from orchestrator.domain.errors import LeaseLost, Unavailable
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.leases import LeaseStore

log = structlog.get_logger()

_RENEWALS = 4  # a lease is renewed after each quarter of its lifetime; two renewals in a row may fail
_LAST_RENEWAL_S = 5.0  # how long close() waits for a renewal in flight
_GIVEN_UP_S = 3600.0  # for so long, do not request a cluster that this service could not supervise


def _steady() -> float:
    """Return monotonic seconds that count while the machine sleeps. Linux's CLOCK_MONOTONIC does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseHolder:
    """This service as the holder of leases. The keepers of all its clusters share it."""

    def __init__(self, name: str, *, ttl_s: float, monotonic: Callable[[], float] = _steady) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self.monotonic = monotonic
        self.ending = False  # an ending service requests no lease
        self._given_up: dict[str, float] = {}  # until when

    def give_up(self, cluster: str) -> None:
        """Note that this service cannot supervise the cluster."""
        self._given_up = {**self._given_up, cluster: self.monotonic() + _GIVEN_UP_S}

    def given_up(self) -> frozenset[str]:
        """Return the clusters that were given up within the last hour."""
        return frozenset(cluster for cluster, until in self._given_up.items() if self.monotonic() < until)


class LeaseKeeper:
    """The lease of one cluster. It is renewed only while `lively` returns True."""

    def __init__(
        self,
        store: LeaseStore,
        cluster: str,
        holder: LeaseHolder,
        *,
        lively: Callable[[], bool] = lambda: True,
        on_loss: Callable[[], None] = lambda: None,
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_loss` is called for each lease that ended before it was released, `on_request` if another requests it."""
        self.cluster = cluster
        self.pause_s = holder.ttl_s / _RENEWALS
        self._store = store
        self._holder = holder
        self._ttl_s = holder.ttl_s
        self._lively = lively
        self._on_loss = on_loss
        self._on_request = on_request
        self._monotonic = holder.monotonic
        self._changing = threading.Lock()  # guards the next three, which both threads change
        self._lease: Lease | None = None
        self._until = 0.0  # on `monotonic`, counted from before the call to the store
        self._requested = False  # whether another service requests the lease
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._renew_repeatedly, name=f"lease-{cluster}", daemon=True)

    def open(self) -> None:
        """Start the thread that renews the lease."""
        self._keeper.start()

    def take(self) -> Lease | None:
        """Acquire the lease. If another service holds it, request it if that is fair. Raises StoreUnavailable."""
        self.lose()  # a lease that expired unnoticed
        asked, given_up = self._monotonic(), self._holder.given_up()
        if self._holder.ending:
            given_up |= {self.cluster}
        lease = self._store.acquire(self.cluster, self._holder.name, ttl_s=self._ttl_s, given_up=given_up)
        with self._changing:
            self._lease, self._until, self._requested = lease, asked + self._ttl_s, False
        if lease is None:
            return None
        if self._closing.is_set():  # close() would not release this one
            self.release()
            return None
        log.info("supervises cluster", cluster=self.cluster, token=lease.token)
        return lease

    @property
    def held(self) -> bool:
        with self._changing:
            return self._lease is not None and self._monotonic() < self._until

    def require(self) -> None:
        """Raises LeaseLost if the lease has expired. Then the caller must change nothing outside the store."""
        if not self.held:
            raise LeaseLost(f"the lease of cluster {self.cluster} has expired")

    def renew(self) -> None:
        """Extend the lease, if passes make progress. Raises StoreUnavailable."""
        lease, asked = self._lease, self._monotonic()
        if lease is None or not self._lively():
            return
        renewed = self._store.renew(lease, ttl_s=self._ttl_s)
        with self._changing:
            if self._lease is not lease:
                return  # the answer is about an earlier lease
            if renewed is not None:
                self._until, self._requested = asked + self._ttl_s, renewed.requested
        if renewed is None:
            self.lose(lease)
        elif renewed.requested:
            self._on_request()

    def hand_over(self) -> bool:
        """Hand the lease to a service that requests it, if that is fair. Returns whether it is gone.

        Call it between passes. It is also gone if the store's answer is lost: then `take` may get it back.
        """
        with self._changing:
            lease, requested = self._lease, self._requested
            if lease is None or not requested:
                return False
            self._lease, self._requested = None, False  # a renewal in flight does not count it as lost
        try:
            if self._store.hand_over(lease, ttl_s=self._ttl_s):
                log.info("handed the cluster over to another service", cluster=self.cluster)
                return True
        except Unavailable as error:
            log.warning("lease not handed over", cluster=self.cluster, reason=str(error))
            return True
        with self._changing:
            self._lease = lease
        return False

    def lose(self, lease: Lease | None = None) -> None:
        """Drop the lease, because another service may have it. With `lease`, drop only that one."""
        with self._changing:
            if self._lease is None or lease not in (None, self._lease):
                return
            self._lease = None
        self._on_loss()
        log.warning("another service may supervise the cluster now", cluster=self.cluster)

    def close(self) -> None:
        """Release the lease, so that another service need not wait until it expires. The whole service is ending."""
        self._holder.ending = True
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=_LAST_RENEWAL_S)
        self.release()

    def release(self) -> None:
        """Release the lease, if it is held. An error of the store is only logged: the lease then expires."""
        with self._changing:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._store.release(lease)
            except Unavailable as error:
                log.warning("lease not released", cluster=self.cluster, reason=str(error))

    def _renew_repeatedly(self) -> None:
        while not self._closing.wait(self.pause_s):
            try:
                self.renew()
            except Unavailable as error:
                log.warning("lease not renewed", cluster=self.cluster, reason=str(error))
            except Exception:
                # One defect must not stop later renewals.
                log.exception("lease not renewed", cluster=self.cluster)
