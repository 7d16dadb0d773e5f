"""Who supervises a cluster: the holder of its lease, for as long as it renews it in time.

The lease is renewed from a thread of its own, so that a slow scheduler call does not cost it, and only while the
passes go on. A process that slept past its time finds out here before it touches the cluster, and in the store,
which refuses its writes, whatever it believes itself.
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

_RENEWALS = 4  # in one life-time of a lease: three may fail
_LAST_RENEWAL_S = 5.0  # how long a renewal in flight may hold up the end


def _steady() -> float:
    """Seconds that also pass while the machine sleeps, which Linux's monotonic clock leaves out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseKeeper:
    """The right to supervise one cluster. `lively` tells whether it is being used."""

    def __init__(
        self,
        store: LeaseStore,
        cluster: str,
        holder: str,
        *,
        ttl_s: float,
        lively: Callable[[], bool] = lambda: True,
        on_loss: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = _steady,
    ) -> None:
        self.cluster = cluster
        self.pause_s = ttl_s / _RENEWALS
        self._store = store
        self._holder = holder
        self._ttl_s = ttl_s
        self._lively = lively
        self._on_loss = on_loss  # for every lease that went before it was given up
        self._monotonic = monotonic
        self._changing = threading.Lock()  # the keeper and the passes both change the next two
        self._lease: Lease | None = None
        self._until = 0.0  # by our own steady clock; measured from before the store was asked
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"lease-{cluster}", daemon=True)

    def open(self) -> None:
        """Begin to renew whatever lease is held."""
        self._keeper.start()

    def take(self) -> Lease | None:
        """The lease, if it is to be had now. Raises StoreUnavailable."""
        self.lose()  # its time is over, though nobody told us so
        asked = self._monotonic()
        lease = self._store.acquire(self.cluster, self._holder, ttl_s=self._ttl_s)
        with self._changing:
            self._lease, self._until = lease, asked + self._ttl_s
        if lease is None:
            return None
        if self._closing.is_set():  # too late: nobody would renew it, or give it up
            self.give_up()
            return None
        log.info("supervises cluster", cluster=self.cluster, token=lease.token)
        return lease

    @property
    def held(self) -> bool:
        with self._changing:
            return self._lease is not None and self._monotonic() < self._until

    def require(self) -> None:
        """Raises LeaseLost when the time is over: nothing in the world may be touched any more."""
        if not self.held:
            raise LeaseLost(f"the lease of cluster {self.cluster} is over")

    def renew(self) -> None:
        """Hold on, where the passes go on. Raises StoreUnavailable."""
        lease, asked = self._lease, self._monotonic()
        if lease is None or not self._lively():
            return
        renewed = self._store.renew(lease, ttl_s=self._ttl_s)
        with self._changing:
            if self._lease is not lease:
                return  # the answer is about an earlier one
            if renewed:
                self._until = asked + self._ttl_s
                return
        self.lose(lease)

    def lose(self, lease: Lease | None = None) -> None:
        """It is another one's now; `lease`, if it is still that one."""
        with self._changing:
            if self._lease is None or lease not in (None, self._lease):
                return
            self._lease = None
        self._on_loss()
        log.warning("another service may supervise the cluster now", cluster=self.cluster)

    def close(self) -> None:
        """Give the lease up, so that another one need not wait for its end."""
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=_LAST_RENEWAL_S)
        self.give_up()

    def give_up(self) -> None:
        """Leave the cluster to whoever asks for it next."""
        with self._changing:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._store.release(lease)
            except Unavailable as error:
                log.warning("lease not given back", cluster=self.cluster, reason=str(error))

    def _keep(self) -> None:
        while not self._closing.wait(self.pause_s):
            try:
                self.renew()
            except Unavailable as error:
                log.warning("lease not renewed", cluster=self.cluster, reason=str(error))
            except Exception:
                # The thread's edge: one defect must not end every later renewal.
                log.exception("lease not renewed", cluster=self.cluster)
