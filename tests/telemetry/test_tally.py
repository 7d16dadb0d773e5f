"""Events become numbers: each once, under the names that alerts and dashboards use."""

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
    Tally(metrics).hear([(job, event) for event in events])
    return metrics


def _restarts(metrics: Metrics) -> dict[tuple[str, str], float]:
    """By rung and budget, those that there were."""
    return {
        (sample.labels["rung"], sample.labels["budget"]): sample.value
        for family in text_string_to_metric_families(metrics.render(None).decode())
        for sample in family.samples
        if sample.name == "orchestrator_restarts_total" and sample.value
    }


def _ended(failure: Failure | None, state: str = "FAILED") -> Event:
    told = {} if failure is None else {"failure": render_failure(failure)}
    return make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": state, **told})


def _job(state: str) -> Event:
    return make_event(EventKind.JOB_STATE, evidence={"state": state, "rule": "r"})


NODE = Failure(kind=FailureKind.NODE, message="it fell silent")


@pytest.mark.parametrize(
    ("kind", "rung", "budget"),
    [("restart.in_place", "in-place", "application"), ("group.shrunk", "shrink", "node"), ("group.grew", "grow", None)],
)
def test_a_change_of_the_group_is_a_recovery_of_its_rung(kind: str, rung: str, budget: str | None) -> None:
    metrics = _count(make_event(kind, evidence={"seconds": 0.3, "rung": "of the agent's own making"}))
    assert value(metrics, "orchestrator_recovery_seconds_count", rung=rung) == 1
    assert value(metrics, "orchestrator_recovery_seconds_sum", rung=rung) == pytest.approx(0.3)
    assert _restarts(metrics) == ({} if budget is None else {(rung, budget): 1})


@pytest.mark.parametrize("seconds", ["0.3", None, float("nan"), float("inf"), -1, True, {}])
def test_seconds_that_are_no_number_are_not_counted(seconds: object) -> None:
    metrics = _count(make_event("restart.in_place", evidence={"seconds": seconds}))
    assert value(metrics, "orchestrator_recovery_seconds_count", rung="in-place") == 0
    assert _restarts(metrics) == {("in-place", "application"): 1}


def test_a_new_attempt_that_trains_is_a_recovery() -> None:
    metrics = _count(make_event(EventKind.RECOVERED, evidence={"rung": "new-attempt", "seconds": 12.5}))
    assert value(metrics, "orchestrator_recovery_seconds_sum", rung="new-attempt") == 12.5


def test_an_attempt_that_another_one_follows_is_a_restart_of_the_class_that_pays() -> None:
    metrics = _count(_ended(NODE, "LOST"), _job("RECOVERING"))
    assert _restarts(metrics) == {("new-attempt", "node"): 1}
    assert value(metrics, "orchestrator_attempts_ended_total", state="LOST", kind="node") == 1


def test_a_taken_port_is_paid_by_no_budget() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE: address already in use")
    metrics = _count(_ended(taken), _job("RECOVERING"))
    assert _restarts(metrics) == {("new-attempt", "none"): 1}


@pytest.mark.parametrize(("cost", "payer"), [({}, "none"), ({"application": 2}, "none"), ({"node": 1}, "node")])
def test_what_earned_its_charge_back_is_paid_by_no_budget(cost: dict[str, int], payer: str) -> None:
    ended = _ended(NODE, "LOST")
    ended = replace(ended, evidence={**ended.evidence, "cost": cost})
    assert _restarts(_count(ended, _job("RECOVERING"))) == {("new-attempt", payer): 1}


def test_the_last_attempt_of_a_job_is_no_restart() -> None:
    metrics = _count(_ended(NODE), _job("FAILED"))
    assert _restarts(metrics) == {}
    assert value(metrics, "orchestrator_jobs_ended_total", state="FAILED") == 1
    assert value(metrics, "orchestrator_attempts_ended_total", state="FAILED", kind="node") == 1


def test_a_restart_is_one_of_the_job_that_recovers_and_not_of_its_neighbour() -> None:
    metrics = Metrics()
    Tally(metrics).hear([("job-1", _ended(NODE)), ("job-1", _job("FAILED")), ("job-2", _job("RECOVERING"))])
    assert _restarts(metrics) == {}


def test_an_attempt_that_ended_well_has_no_kind() -> None:
    metrics = _count(_ended(None, "SUCCEEDED"), _job("SUCCEEDED"))
    assert value(metrics, "orchestrator_attempts_ended_total", state="SUCCEEDED", kind="none") == 1


def test_waits_are_told_apart_by_whose_queue_it_was() -> None:
    intended = make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": "INTENDED", "waited_s": 30.0})
    running = make_event(EventKind.ATTEMPT_STATE, attempt=1, evidence={"state": "RUNNING", "waited_s": 600.0})
    again = make_event(EventKind.ATTEMPT_STATE, attempt=2, evidence={"state": "INTENDED"})
    metrics = _count(intended, running, again)
    assert value(metrics, "orchestrator_queue_wait_seconds_sum", queue="service") == 30
    assert value(metrics, "orchestrator_queue_wait_seconds_count", queue="service") == 1
    assert value(metrics, "orchestrator_queue_wait_seconds_sum", queue="cluster") == 600


def test_snapshots_and_marks_are_counted_by_what_they_are() -> None:
    marked = make_event(EventKind.NODE_MARKED, evidence={"node": "n1", "kind": "node", "cluster": "lab"})
    metrics = _count(make_event("snapshot.committed"), make_event("snapshot.quarantined"), marked)
    assert value(metrics, "orchestrator_snapshots_total", outcome="committed") == 1
    assert value(metrics, "orchestrator_snapshots_total", outcome="quarantined") == 1
    assert value(metrics, "orchestrator_node_failures_total", cluster="lab", kind="node") == 1


def test_what_ends_nothing_changes_no_number() -> None:
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


def test_counts_begin_at_zero_so_that_the_first_one_is_an_increase() -> None:
    metrics = Metrics(clusters=["lab"])
    Tally(metrics)
    assert value(metrics, "orchestrator_jobs_ended_total", state="FAILED") == 0
    assert value(metrics, "orchestrator_restarts_total", rung="new-attempt", budget="hang") == 0
    assert value(metrics, "orchestrator_snapshots_total", outcome="failed") == 0
    assert value(metrics, "orchestrator_recovery_seconds_count", rung="in-place") == 0
    assert value(metrics, "orchestrator_node_failures_total", cluster="lab", kind="node") == 0
    assert value(metrics, "orchestrator_lease_losses_total", cluster="lab") == 0
