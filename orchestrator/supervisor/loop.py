"""The thread that runs passes: soon after each request, at least every `poll_s`, and through every outage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

import structlog

from orchestrator.domain.errors import LeaseLost, Unavailable
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.clock import Clock
from orchestrator.ports.leases import LeaseStore
from orchestrator.supervisor.lease_keeper import LeaseHolder, LeaseKeeper
from orchestrator.supervisor.reconcile import Reconciler
from orchestrator.supervisor.repeats import Repeats
from orchestrator.telemetry.metrics import Metrics

log = structlog.get_logger()

_REST = 3.0  # seconds of rest for each second of work
_LONGEST_REST_S = 3.0
# After a pass that looked at no job, so many seconds for each second of work, unless a request comes.
_IDLE_PAUSE = 40.0
_LONGEST_IDLE_PAUSE_S = 5.0
_LIVELY_S = 60.0  # after this time without progress, the lease is not renewed
_BLIND_S = 60.0  # after this time, release a cluster that does not answer; it may answer another service

# Builds the reconciler of a lease. The callable argument raises LeaseLost once the lease has expired.
Supervision = Callable[[Lease, Callable[[], None]], Reconciler]


class SupervisorLoop:
    """Supervises one cluster until stopped, for as long as it holds the cluster's lease."""

    def __init__(
        self,
        cluster: str,
        leases: LeaseStore,
        supervision: Supervision,
        clock: Clock,
        metrics: Metrics,
        *,
        holder: LeaseHolder,
        poll_s: float,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """`tidy` is called after each pass under the lease. It must be quick."""
        self._cluster = cluster
        self._clock = clock
        self._metrics = metrics
        self._supervision = supervision
        self._poll_s = poll_s
        self._tidy = tidy
        self._holder = holder
        self._keeper = LeaseKeeper(
            leases,
            cluster,
            holder,
            lively=lambda: self._silent_s() < _LIVELY_S,
            on_loss=metrics.lease_losses.labels(cluster).inc,
            on_request=self.wake,
        )
        metrics.lease_held.labels(cluster).set_function(lambda: float(self._keeper.held))
        self._reconciler: Reconciler | None = None
        self._repeats = Repeats()
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"supervisor-{cluster}", daemon=True)
        self._last_sign = time.monotonic()  # when a pass last ended or acted
        self._last_sight = 0.0  # when the cluster last answered, or when the lease was taken

    def start(self) -> None:
        self._keeper.open()
        self._thread.start()

    def wake(self) -> None:
        """Start a pass soon: a request was stored, or another service requests the lease."""
        self._news.set()

    def stop(self) -> None:
        """Finish the pass and release the lease. Jobs continue without the service."""
        self._ending.set()
        self._news.set()
        self._thread.join(timeout=30)
        self._keeper.close()

    def alive(self) -> tuple[bool, str]:
        """Whether passes run, here or in the service that holds the lease. For the readiness probe."""
        silent_s = self._silent_s()
        if not self._thread.is_alive() or silent_s >= _LIVELY_S:
            return False, f"the supervisor of cluster {self._cluster} made no progress for {silent_s:.0f} s"
        if not self._keeper.held:
            return True, f"another service supervises cluster {self._cluster}"
        return True, f"last progress {silent_s:.1f} s ago"

    def _silent_s(self) -> float:
        return time.monotonic() - self._last_sign

    def _run(self) -> None:
        while not self._ending.is_set():
            self._news.clear()
            began = time.thread_time()
            look_again_at = self._pass()
            worked_s = time.thread_time() - began
            # However often requests wake the loop, the API has three quarters of the time, if a pass takes no more than
            # a second of CPU time. After a longer pass, the loop rests for three seconds.
            self._ending.wait(min(_LONGEST_REST_S, _REST * worked_s))
            self._news.wait(self._pause_s(look_again_at, worked_s))

    def _pause_s(self, look_again_at: datetime | None, worked_s: float) -> float:
        if self._reconciler is None:
            return self._keeper.pause_s
        ahead_s = None if look_again_at is None else (look_again_at - self._clock.now()).total_seconds()
        return choose_pause_s(self._poll_s, ahead_s, worked_s=worked_s, idle=self._reconciler.idle)

    def _pass(self) -> datetime | None:
        started = time.monotonic()
        look_again_at = None
        try:
            if self._keeper.hand_over():
                self._reconciler = None
            reconciler = self._find_reconciler()
            if reconciler is not None:
                look_again_at = reconciler.reconcile()
                if reconciler.answered:
                    self._last_sight = time.monotonic()
                self._metrics.pass_seconds.labels(self._cluster).observe(time.monotonic() - started)
                self._tidy()
        except LeaseLost:
            self._keeper.lose()
            self._reconciler = None
        except Unavailable as error:
            self._metrics.pass_failures.labels(self._cluster).inc()
            self._repeats.warn("pass abandoned", str(error), self._clock.now(), cluster=self._cluster)
        except Exception:
            # The edge of the loop: a defect in one pass must not end the supervision of the cluster.
            self._metrics.pass_failures.labels(self._cluster).inc()
            log.exception("pass failed", cluster=self._cluster)
        self._last_sign = time.monotonic()
        self._make_way()
        return look_again_at

    def _make_way(self) -> None:
        """Release a cluster that has not answered for too long. Any service may take it, this one included."""
        if self._reconciler is not None and self._last_sign - self._last_sight >= _BLIND_S:
            words = "released the lease: the cluster does not answer here"
            self._repeats.warn(words, "", self._clock.now(), cluster=self._cluster)
            self._holder.give_up(self._cluster)
            self._keeper.release()
            self._reconciler = None

    def _find_reconciler(self) -> Reconciler | None:
        """Return the reconciler of the current lease, or None. Each lease gets a new reconciler without memory."""
        if not self._keeper.held:
            self._reconciler = None
            lease = self._keeper.take()
            if lease is not None:
                self._reconciler = self._begin(lease)
            self._last_sight = time.monotonic()
        return self._reconciler

    def _begin(self, lease: Lease) -> Reconciler:
        """Build the reconciler. If that fails, release the lease; a later pass takes it again.

        Raises what the building raises.
        """
        try:
            return self._supervision(lease, self._require_lease)
        except Exception as error:
            if not isinstance(error, Unavailable):
                self._holder.give_up(self._cluster)
            self._keeper.release()
            raise

    def _require_lease(self) -> None:
        """Require the lease before each act on the cluster. This counts as progress, so a long pass keeps the lease."""
        self._keeper.require()
        self._last_sign = time.monotonic()


def choose_pause_s(poll_s: float, ahead_s: float | None, *, worked_s: float, idle: bool) -> float:
    """Return the pause after a pass, in seconds. A request ends it.

    `ahead_s` is the time until the next look that a decision named, `worked_s` the CPU time of the pass. `idle` means
    that it looked at no job: if that took long, there are many jobs, and the next such pass must not come too soon.
    """
    least_s = min(_LONGEST_IDLE_PAUSE_S, _IDLE_PAUSE * worked_s) if idle else 0.0
    return max(least_s, 0.0, min(poll_s, poll_s if ahead_s is None else ahead_s))
