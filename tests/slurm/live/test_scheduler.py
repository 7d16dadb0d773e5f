"""Actions of Slurm and its administrators: preemption, time limit, hold, drain, requeue, a dead controller."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.slurm.live.lab import Lab, soon, training

pytestmark = pytest.mark.timeout(1200)
LONG = {"steps": 150}


@pytest.mark.smoke
def test_a_preempted_job_takes_a_snapshot_and_starts_again(lab: Lab) -> None:
    job = lab.submit(trainer=LONG, topology={"nodes": "4", "workers_per_node": 1}, snapshot={"interval": "1000"})
    lab.at_step(job, 20)
    lab.slurm.run("sbatch", "-p", "high", "-N4", "--cpus-per-task=4", "--wrap=sleep 8", "-o", "/dev/null")
    waiting = lab.until(job, lambda job: job.attempts == 2 and "waits in Slurm's queue" in job.reason)
    assert "waits in Slurm's queue as job" in waiting.reason
    done = lab.succeeded(job)
    first = next(iter(lab.client.attempts(job)))
    assert (done.attempts, first.state, "restored" in lab.kinds(job)) == (2, "PREEMPTED", True)
    assert "Slurm preempted it for another job" in lab.sentences(job)
    assert done.spent.get("node", 0) == done.spent.get("application", 0) == 0


def test_a_job_takes_a_snapshot_before_its_time_limit_and_continues_without_cost(
    open_lab: Callable[..., Lab],
) -> None:
    lab = open_lab(notice_s=30)
    submitted = lab.client.submit(
        training(
            trainer={"steps": 100_000, "seq_len": 128},
            topology={"nodes": "1", "workers_per_node": 1},
            snapshot={"interval": "100000"},
            placement={"time_limit_s": 120},
            supervise={"backoff_s": [0.1, 0.2], "budgets": {"hang": 0}},
        )
    )
    # The notice of 30 s, one minute because Slurm may be early, and a start of 60 s.
    assert any("placement.time_limit_s of 120 s" in warning for warning in submitted.warnings)
    job = submitted.id
    seen = lab.until(job, lambda job: (job.attempts >= 3 and (job.step or 0) > 0) or job.ended, timeout_s=600)
    assert (seen.ended, seen.spent) == (False, {}), lab.sentences(job)
    steps = lab.steps(job)
    first = next(iter(lab.client.attempts(job)))
    lab.client.cancel(job)
    assert "attempt 1 ended FAILED; a snapshot keeps its steps up to" in lab.sentences(job)
    assert "so it costs no budget" in lab.sentences(job)
    assert "time limit" in first.reason, lab.sentences(job)
    assert first.failure is not None
    assert first.failure.kind == "timeout"
    assert len(steps) == len(set(steps)), "steps were repeated, so the last snapshot was not used"


def test_a_drained_node_finishes_its_job_and_takes_no_other(lab: Lab) -> None:
    running = lab.submit(trainer=LONG)
    lab.at_step(running, 5)
    for node in lab.slurm.shape.names:
        lab.slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=disk")
    try:
        waiting = lab.submit(trainer={"steps": 20})
        seen = lab.until(waiting, lambda job: "ReqNodeNotAvail" in job.reason or "DRAINED" in job.reason)
        assert "down, drained or reserved" in seen.reason
        lab.succeeded(running)
        partition = next(part for part in lab.client.clusters()[0].partitions if part.name == "main")
        # The exit record may arrive before Slurm has ended the job.
        assert partition.idle == 0
        assert partition.broken["n1"] in ("draining: disk", "drained: disk")
    finally:
        for node in lab.slurm.shape.names:
            lab.slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    lab.succeeded(waiting)


def test_a_killed_or_hanging_controller_does_not_disturb_a_running_job(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 20_000})

    def goes_on() -> None:
        lab.at_step(job, (lab.client.job(job).step or 0) + 20)

    lab.at_step(job, 10)
    lab.slurm.kill_controller()
    try:
        soon(lambda: not lab.client.clusters()[0].answers, "the outage is not noticed")
        goes_on()
    finally:
        lab.slurm.start_controller()
    soon(lambda: lab.client.clusters()[0].answers, "the end of the outage is not noticed")
    lab.slurm.pause_controller()
    try:
        goes_on()
    finally:
        lab.slurm.wake_controller()
    goes_on()
    lab.client.cancel(job)
    done = lab.until(job, lambda job: job.ended)
    assert (done.attempts, done.restarts, len(lab.slurm_jobs(job))) == (1, 0, 1)
    steps = lab.steps(job)
    assert steps == list(range(1, len(steps) + 1))


def test_a_job_that_ends_while_the_controller_is_down_succeeds(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 60})
    lab.at_step(job, 10)
    lab.slurm.kill_controller()
    try:
        done = lab.succeeded(job)
    finally:
        lab.slurm.start_controller()
    assert done.attempts == 1


def test_a_job_that_is_submitted_after_an_outage_succeeds(lab: Lab) -> None:
    last = lab.submit(trainer={"steps": 60})
    lab.at_step(last, 10)
    lab.slurm.kill_controller()
    try:
        lab.succeeded(last)  # so that no attempt is left to ask about
    finally:
        lab.slurm.start_controller()
    soon(lambda: lab.client.clusters()[0].answers, "the end of the outage is not noticed")
    assert lab.succeeded(lab.submit(trainer={"steps": 20})).attempts == 1


def test_a_job_that_an_administrator_requeues_is_trained_once(lab: Lab) -> None:
    job = lab.submit(trainer=LONG)
    lab.at_step(job, 20)
    number = lab.slurm_id(job)
    lab.slurm.run("scontrol", "update", f"jobid={number}", "requeue=1")
    lab.slurm.run("scontrol", "requeue", number)
    done = lab.succeeded(job)
    assert done.attempts == 2
    assert "somebody else requeued it in Slurm" in lab.sentences(job)
    assert ("restored" in lab.kinds(job), sorted(set(lab.steps(job)))) == (True, list(range(1, 151)))
    # Its second run is cancelled, or refuses to work and fails.
    assert {state for number_, _, state in lab.slurm_jobs(job) if number_ == number} <= {"CANCELLED", "FAILED"}


def test_a_job_whose_id_was_reused_after_a_loss_of_state_starts_again(lab: Lab) -> None:
    job = lab.submit(trainer=LONG)
    lab.at_step(job, 20)
    number = lab.slurm_id(job)
    lab.service.kill()
    lab.slurm.lose_state()
    strangers = [""]
    while strangers[-1] != number:
        strange = ["--uid=65534", "--hold", "--chdir=/", "--output=/dev/null", "--wrap=sleep 600"]
        strangers.append(lab.slurm.run("sbatch", "--parsable", *strange).strip())
    try:
        lab.service.start()
        done = lab.succeeded(job)
        first = next(iter(lab.client.attempts(job)))
        assert (done.attempts, first.state) == (2, "LOST"), lab.sentences(job)
        assert f"Slurm no longer knows job {number}: another job has that id now" in first.reason
        assert "restored" in lab.kinds(job)
    finally:
        lab.slurm.run("scancel", *strangers[1:])


def test_a_job_that_is_cancelled_in_slurm_starts_again(lab: Lab) -> None:
    job = lab.submit(trainer=LONG)
    lab.at_step(job, 20)
    lab.slurm.run("scancel", lab.slurm_id(job))
    done = lab.succeeded(job)
    first = next(iter(lab.client.attempts(job)))
    assert (done.attempts, first.state) == (2, "PREEMPTED")
    assert "cancelled in Slurm by somebody else" in first.reason


def test_a_held_job_says_how_to_release_it(lab: Lab) -> None:
    blocker = lab.slurm.run("sbatch", "--parsable", "-N4", "--cpus-per-task=4", "--wrap=sleep 120", "-o", "/dev/null")
    job = lab.submit(trainer={"steps": 20})
    lab.until(job, lambda job: "no nodes are free" in job.reason or "Priority" in job.reason)
    number = lab.slurm_id(job)
    lab.slurm.run("scontrol", "hold", number)
    lab.until(job, lambda job: "JobHeld" in job.reason)
    assert lab.client.why(job).verdict.endswith(f"as job {number}: JobHeldAdmin (an administrator holds it).")
    lab.slurm.run("scancel", blocker.strip())
    time.sleep(2)
    assert lab.client.job(job).state == "STARTING"
    lab.slurm.run("scontrol", "release", number)
    assert lab.succeeded(job).attempts == 1


def test_a_job_cancelled_in_slurms_queue_ends_at_once(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab(settle_s=3600)  # longer than the test waits
    blocker = lab.slurm.run("sbatch", "--parsable", "-N4", "--cpus-per-task=4", "--wrap=sleep 300", "-o", "/dev/null")
    try:
        job = lab.submit(trainer={"steps": 20})
        lab.until(job, lambda job: "waits in Slurm's queue" in job.reason)
        lab.client.cancel(job)
        assert lab.until(job, lambda job: job.ended).state == "CANCELLED"
        assert "PENDING" not in {state for _, _, state in lab.slurm_jobs(job)}
    finally:
        lab.slurm.run("scancel", blocker.strip())


def test_a_job_that_no_node_can_hold_fails_with_the_limits(lab: Lab) -> None:
    job = lab.submit(resources={"cpus": 64})
    ended = lab.until(job, lambda job: job.ended)
    assert ended.failure is not None
    says = "needs 2 nodes with 64 CPUs; partition main has none: its largest node has 4 CPUs"
    assert (ended.state, ended.failure.kind, says in ended.reason) == ("FAILED", "launch", True), ended.reason
    remedy = lab.client.why(job).remedy
    assert remedy is not None
    assert remedy.name == "refused by the scheduler"


def test_a_job_that_slurm_lets_wait_forever_says_so(lab: Lab) -> None:
    lab.slurm.run("scontrol", "update", "partitionname=main", "maxtime=1")
    try:
        job = lab.submit(placement={"time_limit_s": 600})
        lab.until(job, lambda job: "PartitionTimeLimit" in job.reason or job.ended)
        why = lab.client.why(job)
        assert "PartitionTimeLimit (it can never start with a time limit above the partition's" in why.verdict
        assert why.next.startswith(f"Run `orchestrator cancel {job}`")
        lab.client.cancel(job)
        assert lab.until(job, lambda job: job.ended).state == "CANCELLED"
    finally:
        lab.slurm.run("scontrol", "update", "partitionname=main", "maxtime=infinite")


def test_a_suspended_job_is_not_a_hang(lab: Lab) -> None:
    job = lab.submit(trainer=LONG, supervise={"heartbeat_timeout_s": 3, "backoff_s": [0.1, 0.2]})
    lab.at_step(job, 10)
    number = lab.slurm_id(job)
    lab.slurm.run("scontrol", "suspend", number)
    pause_reason = (
        f"it is paused: an administrator suspended Slurm job {number}; resume it with `scontrol resume {number}`"
    )
    lab.until(job, lambda job: job.reason.startswith(f"{pause_reason}; last report 20"))
    assert lab.client.why(job).verdict.startswith(f"It{pause_reason[2:]}")
    assert "it is paused" in lab.cli("ls").stdout
    time.sleep(6)
    assert lab.client.job(job).attempts == 1
    lab.slurm.run("scontrol", "resume", number)
    lab.until(job, lambda job: job.reason == "the workers are running" or job.ended)
    assert lab.succeeded(job).attempts == 1
