"""Jobs on a real cluster: they finish, and recover after faults in their workers, pods and Jobs."""

from __future__ import annotations

import time

import pytest

from tests.kubernetes.live.cluster import soon
from tests.kubernetes.live.lab import ENDLESS, Lab
from tests.kubernetes.live.options import Options
from tests.kubernetes.live.relay import Relay

pytestmark = pytest.mark.timeout(2400)

_IMAGE_PATIENCE_S = 300.0  # by default (docs/kubernetes.md)
# The worker of generation 1 kills itself.
_KILLS_ITSELF = (
    "import os, signal; os.environ['ORCHESTRATOR_GENERATION'] == '1' and os.kill(os.getpid(), signal.SIGKILL)"
)


def test_the_bundled_trainer_finishes_on_two_pods_with_two_ranks_each(lab: Lab) -> None:
    job = lab.submit()
    lab.until(job, lambda job: job.world_size == 4 or job.ended)
    done = lab.succeeded(job)
    assert (done.attempts, done.step) == (1, 60), lab.sentences(job)
    (made,) = lab.cluster.jobs(job)
    soon(
        lambda: any(each["type"] == "Complete" for each in lab.conditions(job)),
        "the Job is not Complete",
    )
    assert made["spec"]["backoffLimitPerIndex"] == 0


def test_a_killed_worker_restarts_in_its_pod(lab: Lab) -> None:
    job = lab.program(_KILLS_ITSELF)
    done = lab.succeeded(job)
    assert (done.attempts, done.restarts) == (1, 1), lab.sentences(job)


def test_a_deleted_pod_leads_to_a_new_attempt_from_a_snapshot(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": ENDLESS})
    lab.with_snapshot(job)
    pod = lab.cluster.pods(job)[1]["metadata"]["name"]
    lab.cluster.delete_pod(pod)
    lab.goes_on(job, attempts=2)
    first = lab.failures(job)[0]
    assert first.kind == "preempted", lab.sentences(job)
    assert "one of its pods was deleted in the cluster" in first.message
    assert pod in first.message


def test_a_job_that_is_deleted_by_hand_starts_again(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": ENDLESS})
    lab.with_snapshot(job)
    lab.cluster.delete_job(lab.cluster.jobs(job)[0]["metadata"]["name"])
    lab.goes_on(job, attempts=2)
    first = lab.failures(job)[0]
    assert (first.kind, "its Job was deleted in the cluster" in first.message) == ("preempted", True), first.message


def test_an_invalid_image_name_fails_and_an_unreachable_registry_is_retried(lab: Lab) -> None:
    wrong = lab.program("pass", run={"image": "Not:A:Name"})
    failed = lab.until(wrong, lambda job: job.ended)
    assert (failed.state, lab.kinds_of_failure(wrong)) == ("FAILED", ["launch"]), failed.reason
    never = lab.program("pass", run={"image": "registry.example.invalid/team/train:1"})
    lab.until(never, lambda job: job.attempts > 1 or job.ended, timeout_s=_IMAGE_PATIENCE_S + 300)
    # Without internet access the resolver's error may look like a missing image.
    assert lab.kinds_of_failure(never)[0] in ("infrastructure", "launch")
    lab.client.cancel(never)
    lab.until(never, lambda job: job.ended)


def test_an_unschedulable_job_waits_and_can_be_cancelled(lab: Lab) -> None:
    job = lab.program("pass", placement={"node_selector": {"no-such-label": "x"}})
    waiting = lab.until(job, lambda job: "Unschedulable" in job.reason)
    assert "nodes are available" in waiting.reason
    lab.client.cancel(job)
    assert lab.until(job, lambda job: job.ended).state == "CANCELLED"
    soon(lambda: not lab.cluster.jobs(job), "the Job is still there")


def test_a_container_over_its_memory_limit_is_out_of_memory(lab: Lab) -> None:
    """With cgroup v1 the kernel kills only the worker and the agent restarts it. With v2 it kills the container."""
    code = "kept = []; exec('while True: kept.append(b\"x\" * (64 << 20))')"
    job = lab.program(code, resources={"memory_gb": 0.5})
    failed = lab.until(job, lambda seen: seen.ended, timeout_s=900)
    assert failed.state == "FAILED", lab.sentences(job)
    assert set(lab.kinds_of_failure(job)) == {"host-oom"}, lab.sentences(job)


def test_an_unreachable_api_server_does_not_disturb_a_running_job(lab: Lab, relay: Relay, options: Options) -> None:
    job = lab.submit(trainer={"steps": ENDLESS})
    before = lab.at_step(job, 10)
    relay.shut()
    ends = time.monotonic() + float(options["away-s"])
    while time.monotonic() < ends:
        seen = lab.client.job(job)
        assert (seen.state, seen.attempts) == ("RUNNING", 1), f"{seen.reason}\n{lab.sentences(job)}"
        time.sleep(1)
    relay.open()
    after = lab.at_step(job, (before.step or 0) + 10)
    assert after.attempts == 1
    lab.client.cancel(job)
    lab.until(job, lambda job: job.ended)


def test_a_service_that_is_killed_during_the_submission_starts_the_job_once(lab: Lab) -> None:
    for number in range(3):
        job = lab.submit(trainer={"steps": 20})
        deadline = time.monotonic() + 60
        while not lab.cluster.jobs(job) and time.monotonic() < deadline:
            time.sleep(0.002 * number)
        lab.service.kill()
        lab.restart()
        done = lab.succeeded(job)
        assert done.attempts == 1, lab.sentences(job)
        assert len(lab.cluster.jobs(job)) == 1


def test_a_job_that_ends_while_the_service_is_down_succeeds(lab: Lab) -> None:
    job = lab.program("import time; time.sleep(20)")
    lab.until(job, lambda job: job.state == "RUNNING")
    lab.service.kill()
    soon(
        lambda: any(each["type"] == "Complete" for each in lab.conditions(job)),
        "the Job does not end",
        timeout_s=300,
    )
    lab.restart()
    assert lab.succeeded(job).attempts == 1


def test_a_job_is_scaled_down_and_up_again(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": ENDLESS}, topology={"nodes": "2", "workers_per_node": 1})
    lab.until(job, lambda job: job.world_size == 2 and (job.step or 0) >= 20)
    lab.client.scale(job, "1")
    lab.until(job, lambda job: job.world_size == 1 and job.attempts == 2)
    lab.at_step(job, 40)
    lab.client.scale(job, "2")
    lab.until(job, lambda job: job.world_size == 2 and job.attempts == 3)
    lab.client.cancel(job)
    assert lab.until(job, lambda job: job.ended).state == "CANCELLED"
