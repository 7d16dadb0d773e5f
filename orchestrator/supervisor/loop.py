"""The thread that runs passes: soon after a wish, at the latest after `poll_s`, and on through every outage."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import structlog

from orchestrator.domain.errors import Unavailable
from orchestrator.ports import Clock
from orchestrator.supervisor.reconcile import Reconciler
from orchestrator.telemetry import Metrics

log = structlog.get_logger()


class SupervisorLoop:
    """Runs one cluster's reconciler until stopped."""

    def __init__(self, cluster: str, reconciler: Reconciler, clock: Clock, metrics: Metrics, *, poll_s: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._metrics = metrics
        self._reconciler = reconciler
        self._poll_s = poll_s
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"supervisor-{cluster}", daemon=True)
        self._last_pass = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """A wish was recorded: look now."""
        self._news.set()

    def stop(self) -> None:
        """Finish the pass and end. The jobs go on without us."""
        self._stopping = True
        self._news.set()
        self._thread.join(timeout=30)

    def alive(self) -> tuple[bool, str]:
        """Whether passes are still being made, for the readiness probe."""
        silent = time.monotonic() - self._last_pass
        if self._thread.is_alive() and silent < 60:
            return True, f"last pass {silent:.1f} s ago"
        return False, f"the supervisor of cluster {self._cluster} made no pass for {silent:.0f} s"

    def _run(self) -> None:
        while not self._stopping:
            self._news.clear()
            look_again_at = self._pass()
            self._news.wait(self._pause_s(look_again_at))

    def _pause_s(self, look_again_at: datetime | None) -> float:
        if look_again_at is None:
            return self._poll_s
        return max(0.0, min(self._poll_s, (look_again_at - self._clock.now()).total_seconds()))

    def _pass(self) -> datetime | None:
        started = time.monotonic()
        look_again_at = None
        try:
            look_again_at = self._reconciler.reconcile()
            self._metrics.pass_seconds.labels(self._cluster).observe(time.monotonic() - started)
        except Unavailable as error:
            self._metrics.pass_failures.labels(self._cluster).inc()
            log.warning("pass abandoned", cluster=self._cluster, reason=str(error))
        except Exception:
            # The loop's edge: a defect in one pass must not leave every job of the cluster unsupervised.
            self._metrics.pass_failures.labels(self._cluster).inc()
            log.exception("pass failed", cluster=self._cluster)
        self._last_pass = time.monotonic()
        return look_again_at
