"""Calls to a cluster are timed, and their errors are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.supervisor.metered import MeteredBackend
from orchestrator.telemetry.metrics import Metrics
from tests.telemetry.scrape import value

KEY = AttemptKey("job-1", 1)


@dataclass
class SlowCluster:
    """Each call takes `seconds` of a fake clock."""

    seconds: float = 2.0
    now: float = 0.0
    error: Exception | None = None
    cancelled: list[tuple[AttemptKey, bool]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def _work(self) -> None:
        self.now += self.seconds
        if self.error is not None:
            raise self.error

    def render(self, plan: LaunchPlan) -> NativeRequest:
        raise NotImplementedError("no test here calls it")

    def submit(self, plan: LaunchPlan) -> str:
        raise NotImplementedError("no test here calls it")

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        self._work()
        return {key: Sighting(key=key, presence=Presence.PENDING, evidence="queued") for key in launched}

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        self._work()
        self.cancelled.append((key, force))

    def slots(self) -> int | None:
        self._work()
        return 7


def _metered(cluster: SlowCluster) -> tuple[MeteredBackend, Metrics]:
    metrics = Metrics()
    return MeteredBackend(cluster, metrics, "lab", monotonic=cluster.monotonic), metrics


def test_calls_are_forwarded_and_timed() -> None:
    cluster = SlowCluster()
    backend, metrics = _metered(cluster)
    assert backend.observe({KEY: 1})[KEY].presence is Presence.PENDING
    assert backend.slots() == 7
    backend.cancel(KEY, force=True)
    assert cluster.cancelled == [(KEY, True)]
    for call in ("observe", "slots", "cancel"):
        assert value(metrics, "orchestrator_backend_call_seconds_sum", cluster="lab", call=call) == 2.0
    assert b"orchestrator_backend_call_errors_total{" not in metrics.render(None)


def test_an_error_is_counted_and_raised() -> None:
    backend, metrics = _metered(SlowCluster(error=BackendUnavailable("squeue did not answer")))
    with pytest.raises(BackendUnavailable, match="squeue"):
        backend.observe({KEY: 1})
    labels = {"cluster": "lab", "call": "observe"}
    assert value(metrics, "orchestrator_backend_call_errors_total", **labels, error="BackendUnavailable") == 1
    assert value(metrics, "orchestrator_backend_call_seconds_count", **labels) == 1
