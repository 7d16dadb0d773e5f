"""`chaos` on a real Slurm: each fault hits its target, and the job recovers."""

from __future__ import annotations

import pytest

from tests.slurm.live.lab import Lab

pytestmark = pytest.mark.timeout(1200)
LONG = {"steps": 150}


@pytest.mark.parametrize(
    ("fault", "attempts", "kind"), [("kill", 1, "unknown"), ("hang", 1, "hang"), ("node-loss", 2, "node")]
)
def test_a_requested_fault_on_the_second_node_is_recovered_and_named_as_chaos(
    lab: Lab, fault: str, attempts: int, kind: str
) -> None:
    patience: dict[str, float] = {"heartbeat_timeout_s": 15} if fault == "hang" else {}
    job = lab.submit(trainer=LONG, snapshot={"interval": "1000"}, supervise={"backoff_s": [0.1, 0.2], **patience})
    lab.at_step(job, 25)
    # Take the only snapshot before the fault: a rank that hangs in a snapshot is found only after ten minutes.
    assert lab.cli("snapshot", job).returncode == 0
    lab.until(job, lambda job: job.newest_snapshot is not None or job.ended)
    done = lab.cli("chaos", job, fault, "--node", "n2")
    assert done.returncode == 0, done.stderr
    done = lab.succeeded(job)
    assert done.attempts == attempts, lab.sentences(job)
    assert sorted(set(lab.steps(job))) == list(range(1, 151))
    assert "restored" in lab.kinds(job)
    why = lab.client.why(job)
    assert why.cause is not None
    assert why.cause.chaos is not None, why
    assert (why.cause.chaos.fault.value, why.cause.failure.kind, why.cause.over) == (fault, kind, True), why
    assert why.cause.nodes == [], "a requested fault is not in a node record"


def test_a_requested_preemption_takes_a_snapshot_and_makes_a_new_attempt(lab: Lab) -> None:
    job = lab.submit(trainer=LONG, snapshot={"interval": "1000"})
    lab.at_step(job, 25)
    assert lab.cli("chaos", job, "preempt").returncode == 0
    done = lab.succeeded(job)
    assert (done.attempts, "restored" in lab.kinds(job)) == (2, True), lab.sentences(job)
    steps = lab.steps(job)
    assert len(steps) == len(set(steps)), "steps were repeated, so there was no snapshot at the notice"
