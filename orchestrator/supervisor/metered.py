"""A backend that times every call to another one and counts its errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from orchestrator.domain.errors import OrchestratorError
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Sighting
from orchestrator.ports.cluster import Backend, StrictBackend
from orchestrator.telemetry.metrics import Metrics


class MeteredBackend:
    """Implements ports.Backend and StrictBackend by passing each call on unchanged."""

    def __init__(
        self, backend: Backend, metrics: Metrics, cluster: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._cluster = cluster
        self._monotonic = monotonic

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return self._backend.render(plan)

    def submit(self, plan: LaunchPlan) -> str:
        with self._timed("submit"):
            return self._backend.submit(plan)

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        with self._timed("observe"):
            return self._backend.observe(launched)

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        with self._timed("cancel"):
            self._backend.cancel(key, force=force)

    def avoid_only(self, plan: LaunchPlan) -> None:
        if isinstance(self._backend, StrictBackend):
            with self._timed("avoid_only"):
                self._backend.avoid_only(plan)

    def slots(self) -> int | None:
        with self._timed("slots"):
            return self._backend.slots()

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        began = self._monotonic()
        try:
            yield
        except (OrchestratorError, OSError) as error:
            self._metrics.backend_errors.labels(self._cluster, call, type(error).__name__).inc()
            raise
        finally:
            self._metrics.backend_seconds.labels(self._cluster, call).observe(self._monotonic() - began)
