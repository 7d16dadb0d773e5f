"""Each event is counted once, under the names that alerts and dashboards use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.domain.job.event import Event, EventKind
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.tally import Tally
from tests.builders import make_event
from tests.telemetry.scrape import value
from trainer.contract.failure import Failure, FailureKind, render_failure


def _count(*events: Event, job: str = "job-1") -> Metrics:
    metrics = Metrics()
    Tally(metrics).count([(job, event) for event in events])
    return metrics


def _restarts(metrics: Metrics) -> dict[tuple[str, str], float]:
    """The restarts by rung and budget, without zeros."""
    return {
        (sample.labels["rung"], sample.labels["budget"]): sample.value
        for family in text_string_to_metric_families(metrics.render(None).decode())
        for sample in family.samples
        if sample.name == "orchestrator_restarts_total" and sample.value
    }


def _ended(failure: Failure | None, state: str = "FAILED") -> Event:
    evidence = {} if failure is None else {"failure": render_failure(failure)}
    return make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": state, **evidence})


def _job(state: str) -> Event:
    return make_event(EventKind.JOB_STATE, evidence={"state": state, "rule": "r"})


NODE = Failure(kind=FailureKind.NODE, message="no heartbeat")


@pytest.mark.parametrize(
    ("kind", "rung", "budget"),
    [("restart.in_place", "in-place", "application"), ("group.shrunk", "shrink", "node"), ("group.grew", "grow", None)],
)
def test_a_change_of_the_group_counts_as_a_recovery_of_its_kind(kind: str, rung: str, budget: str | None) -> None:
    metrics = _count(make_event(kind, evidence={"seconds": 0.3, "rung": "of the agent's own making"}))
    assert value(metrics, "orchestrator_recovery_seconds_count", rung=rung) == 1
    assert value(metrics, "orchestrator_recovery_seconds_sum", rung=rung) == pytest.approx(0.3)
    assert _restarts(metrics) == ({} if budget is None else {(rung, budget): 1})


@pytest.mark.parametrize("seconds", ["0.3", None, float("nan"), float("inf"), -1, True, {}])
def test_invalid_seconds_are_not_counted(seconds: object) -> None:
    metrics = _count(make_event("restart.in_place", evidence={"seconds": seconds}))
    assert value(metrics, "orchestrator_recovery_seconds_count", rung="in-place") == 0
    assert _restarts(metrics) == {("in-place", "application"): 1}


def test_a_new_attempt_that_trains_counts_as_a_recovery() -> None:
    metrics = _count(make_event(EventKind.RECOVERED, evidence={"rung": "new-attempt", "seconds": 12.5}))
    assert value(metrics, "orchestrator_recovery_seconds_sum", rung="new-attempt") == 12.5


def test_an_attempt_followed_by_another_counts_as_a_restart_of_the_charged_budget() -> None:
    metrics = _count(_ended(NODE, "LOST"), _job("RECOVERING"))
    assert _restarts(metrics) == {("new-attempt", "node"): 1}
    assert value(metrics, "orchestrator_attempts_ended_total", state="LOST", kind="node") == 1


def test_a_taken_port_is_charged_to_no_budget() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE: address already in use")
    metrics = _count(_ended(taken), _job("RECOVERING"))
    assert _restarts(metrics) == {("new-attempt", "none"): 1}


@pytest.mark.parametrize(("cost", "payer"), [({}, "none"), ({"application": 2}, "none"), ({"node": 1}, "node")])
def test_only_the_charged_budget_is_counted(cost: dict[str, int], payer: str) -> None:
    ended = _ended(NODE, "LOST")
    ended = replace(ended, evidence={**ended.evidence, "cost": cost})
    assert _restarts(_count(ended, _job("RECOVERING"))) == {("new-attempt", payer): 1}


def test_the_last_attempt_of_a_job_does_not_count_as_a_restart() -> None:
    metrics = _count(_ended(NODE), _job("FAILED"))
    assert _restarts(metrics) == {}
    assert value(metrics, "orchestrator_jobs_ended_total", state="FAILED") == 1
    assert value(metrics, "orchestrator_attempts_ended_total", state="FAILED", kind="node") == 1


def test_a_restart_needs_a_recovery_of_the_same_job() -> None:
    metrics = Metrics()
    Tally(metrics).count([("job-1", _ended(NODE)), ("job-1", _job("FAILED")), ("job-2", _job("RECOVERING"))])
    assert _restarts(metrics) == {}


def test_an_attempt_that_succeeded_has_no_failure_kind() -> None:
    metrics = _count(_ended(None, "SUCCEEDED"), _job("SUCCEEDED"))
    assert value(metrics, "orchestrator_attempts_ended_total", state="SUCCEEDED", kind="none") == 1


def test_waits_in_the_service_and_in_the_cluster_are_counted_separately() -> None:
    intended = make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": "INTENDED", "waited_s": 30.0})
    running = make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": "RUNNING", "waited_s": 600.0})
    again = make_event(EventKind.ATTEMPT_STATE, attempt=2, evidence={"state": "INTENDED"})
    metrics = _count(intended, running, again)
    assert value(metrics, "orchestrator_queue_wait_seconds_sum", queue="service") == 30
    assert value(metrics, "orchestrator_queue_wait_seconds_count", queue="service") == 1
    assert value(metrics, "orchestrator_queue_wait_seconds_sum", queue="cluster") == 600


def test_snapshots_and_node_failures_are_counted_by_kind() -> None:
    marked = make_event(EventKind.NODE_MARKED, evidence={"node": "n1", "kind": "node", "cluster": "lab"})
    metrics = _count(make_event("snapshot.committed"), make_event("snapshot.quarantined"), marked)
    assert value(metrics, "orchestrator_snapshots_total", outcome="committed") == 1
    assert value(metrics, "orchestrator_snapshots_total", outcome="quarantined") == 1
    assert value(metrics, "orchestrator_node_failures_total", cluster="lab", kind="node") == 1


def test_other_events_are_not_counted() -> None:
    def counted(metrics: Metrics) -> list[tuple[str, dict[str, str], float]]:
        families = text_string_to_metric_families(metrics.render(None).decode())
        ours = [family for family in families if family.name.startswith("orchestrator_")]
        return [
            (each.name, each.labels, each.value)
            for family in ours
            for each in family.samples
            if "_created" not in each.name
        ]

    metrics = _count(_job("RUNNING"), make_event("agent.started"), make_event("an.event.of.the.future"))
    assert counted(metrics) == counted(_count())


def test_counters_start_at_zero() -> None:
    metrics = Metrics(clusters=["lab"])
    Tally(metrics)
    assert value(metrics, "orchestrator_jobs_ended_total", state="FAILED") == 0
    assert value(metrics, "orchestrator_restarts_total", rung="new-attempt", budget="hang") == 0
    assert value(metrics, "orchestrator_snapshots_total", outcome="failed") == 0
    assert value(metrics, "orchestrator_recovery_seconds_count", rung="in-place") == 0
    assert value(metrics, "orchestrator_node_failures_total", cluster="lab", kind="node") == 0
    assert value(metrics, "orchestrator_lease_losses_total", cluster="lab") == 0
