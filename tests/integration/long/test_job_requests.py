"""Requests of owners and waiting jobs, with a real service, agents and trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client, RequestRefused
from orchestrator.wire.job_views import JobView
from tests.conftest import quick_service
from tests.jobs import ended, python_job, running, training_job, until
from trainer.contract.manifest import parse_snapshot_name

FOREVER = "import time; time.sleep(600)"


def at_step(client: Client, job_id: str, step: int) -> JobView:
    job = until(client, job_id, lambda job: (job.step or 0) >= step or job.state.terminal, timeout_s=90)
    assert not job.state.terminal, job.reason
    return job


def wait_until_suspended(client: Client, job_id: str) -> JobView:
    return until(client, job_id, lambda job: job.state == "SUSPENDED")


def step_of(snapshot: str | None) -> int:
    name = parse_snapshot_name(snapshot or "")
    assert name is not None, snapshot
    return name.step


def kinds(client: Client, job_id: str) -> list[str]:
    return [event.kind for event in client.events(job_id)]


def test_a_suspended_training_saves_a_snapshot_and_resumes_from_it(service: ThrowawayService, client: Client) -> None:
    job = client.submit(training_job(workers=3))
    at_step(client, job.id, 20)
    other = client.submit(python_job("pass", workers=4))
    assert until(client, other.id, lambda seen: "slots" in seen.reason).state == "QUEUED"

    assert client.suspend(job.id).suspending
    rests = wait_until_suspended(client, job.id)
    assert (rests.suspended, rests.suspending, rests.pending, rests.spent) == (True, False, [], {})
    kept = step_of(rests.newest_snapshot)
    assert kept >= 20, "the snapshot is of its last step, not of its interval"
    assert until(client, other.id, ended).state == "SUCCEEDED", "the slots are free"
    assert [process for process in service.processes() if process.job_id == job.id] == []

    client.resume(job.id)
    at_step(client, job.id, kept + 1)
    first, second = client.attempts(job.id)
    assert (first.state, second.restored) == ("CANCELLED", rests.newest_snapshot)
    found = kinds(client, job.id)
    assert [kind for kind in found if kind in ("suspend.requested", "resume.requested")] == [
        "suspend.requested",
        "resume.requested",
    ]


def test_suspend_and_resume_are_idempotent(client: Client) -> None:
    job = until(client, client.submit(python_job(FOREVER)).id, running)
    for _ in range(2):
        client.suspend(job.id)
    wait_until_suspended(client, job.id)
    assert client.suspend(job.id).state == "SUSPENDED"
    for _ in range(2):
        client.resume(job.id)
    again = until(client, job.id, running)
    assert again.attempts == 2
    client.resume(job.id)
    found = kinds(client, job.id)
    assert (found.count("suspend.requested"), found.count("resume.requested")) == (1, 1)


def test_a_job_that_is_resumed_while_it_stops_runs_again(client: Client) -> None:
    job = until(client, client.submit(python_job(FOREVER)).id, running)
    client.suspend(job.id)
    client.resume(job.id)
    after = until(client, job.id, lambda seen: seen.state == "RUNNING" and not seen.suspended)
    assert after.attempts in (1, 2)
    assert after.spent == {}


def test_a_suspended_queued_job_does_not_start_or_block_others(client: Client) -> None:
    holder = until(client, client.submit(python_job(FOREVER, workers=4)).id, running)
    held_back = client.submit(python_job("pass", workers=4))
    passing = client.submit(python_job("pass"))
    client.suspend(held_back.id)
    wait_until_suspended(client, held_back.id)
    client.cancel(holder.id)
    assert until(client, passing.id, ended).state == "SUCCEEDED"
    assert (client.job(held_back.id).state, client.job(held_back.id).attempts) == ("SUSPENDED", 0)
    client.resume(held_back.id)
    assert until(client, held_back.id, ended).state == "SUCCEEDED"


def test_a_suspended_job_can_be_cancelled_and_retried(client: Client) -> None:
    job = until(client, client.submit(python_job(FOREVER)).id, running)
    client.suspend(job.id)
    wait_until_suspended(client, job.id)
    client.cancel(job.id)
    assert until(client, job.id, ended).state == "CANCELLED"
    with pytest.raises(RequestRefused, match="CANCELLED"):
        client.resume(job.id)

    other = until(client, client.submit(python_job(FOREVER)).id, running)
    client.suspend(other.id)
    wait_until_suspended(client, other.id)
    client.retry(other.id, patch={"run": {"command": ["true"]}})
    done = until(client, other.id, ended)
    assert (done.state, done.attempts, done.suspended) == ("SUCCEEDED", 2, False)


def test_a_scaled_training_continues_from_a_snapshot_on_the_new_number_of_nodes(client: Client) -> None:
    job = client.submit(training_job())
    before = at_step(client, job.id, 20)
    assert (before.nodes, before.world_size) == ("1", 1)

    scaled = client.scale(job.id, 2)
    assert (scaled.asked, scaled.pending) == ("2", ["scale"])
    client.scale(job.id, 2)
    grown = until(client, job.id, lambda seen: seen.attempts == 2 and seen.world_size == 2, timeout_s=90)
    first, second = client.attempts(job.id)
    assert (first.state, first.nodes, second.nodes, second.asked) == ("CANCELLED", "1", "2", "2")
    grown = at_step(client, job.id, step_of(second.restored or client.job(job.id).newest_snapshot) + 1)
    _, second = client.attempts(job.id)
    assert step_of(second.restored) >= 20
    assert (grown.spent, grown.pending) == ({}, [])

    client.scale(job.id, 1)
    until(client, job.id, lambda seen: seen.attempts == 3 and seen.world_size == 1, timeout_s=90)
    assert client.job(job.id).spent == {}
    assert kinds(client, job.id).count("scale.requested") == 2


def test_a_job_is_scaled_up_once_the_nodes_are_free(client: Client) -> None:
    other = until(client, client.submit(python_job(FOREVER, workers=3)).id, running)
    job = until(client, client.submit(python_job(FOREVER)).id, running)
    client.scale(job.id, "2")
    client.snapshot(job.id)  # once this later request is done, the supervisor has seen both
    until(client, job.id, lambda seen: "snapshot" not in seen.pending)
    assert (client.job(job.id).attempts, client.job(job.id).pending) == (1, ["scale"])
    client.cancel(other.id)
    grown = until(client, job.id, lambda seen: seen.attempts == 2 and seen.state == "RUNNING")
    assert (grown.nodes, grown.pending) == ("2", [])


def test_a_requested_snapshot_is_saved_without_a_restart(client: Client) -> None:
    job = client.submit(training_job(workers=2))
    at_step(client, job.id, 10)
    assert client.job(job.id).newest_snapshot is None
    client.snapshot(job.id)
    taken = until(client, job.id, lambda seen: seen.newest_snapshot is not None)
    assert [event.attempt for event in client.events(job.id) if event.kind == "snapshot.committed"] == [1]
    first = step_of(taken.newest_snapshot)
    going_on = at_step(client, job.id, first + 20)
    assert (going_on.attempts, going_on.generation, going_on.pending) == (1, 1, [])
    client.snapshot(job.id)
    until(client, job.id, lambda seen: step_of(seen.newest_snapshot) > first)
    assert kinds(client, job.id).count("snapshot.committed") == 2


def test_a_job_waits_for_the_job_in_its_field_after(client: Client) -> None:
    first = client.submit(python_job("import time; time.sleep(3)"))
    second = client.submit(python_job("pass", after=[first.id]))
    waiting = until(client, second.id, lambda job: first.id in job.reason)
    assert waiting.state == "QUEUED"
    assert waiting.reason.startswith(f"waits for job {first.id} to succeed; it is ")
    passing = client.submit(python_job("pass"))
    assert until(client, passing.id, ended).state == "SUCCEEDED"
    assert client.job(second.id).state == "QUEUED", "a waiting job does not block others"
    assert until(client, second.id, ended).state == "SUCCEEDED"
    assert client.job(first.id).state == "SUCCEEDED"


def test_a_job_waits_for_a_failed_one_until_its_retry_succeeds(client: Client) -> None:
    first = client.submit(python_job("raise SystemExit(3)", supervise={"budgets": {"application": 0}}))
    second = client.submit(python_job("pass", after=[first.id]))
    assert until(client, first.id, ended).state == "FAILED"
    waiting = until(client, second.id, lambda job: "FAILED" in job.reason)
    assert waiting.reason == f"waits for job {first.id}, which is FAILED; retry {first.id} or cancel this job"
    client.retry(first.id, patch={"run": {"command": ["true"]}})
    assert until(client, second.id, ended).state == "SUCCEEDED"


def test_a_job_beyond_its_projects_quota_waits_without_blocking_other_projects(tmp_path: Path) -> None:
    projects = '{"research": {"max_jobs": 2}, "small": {"max_devices": 1}}'
    with quick_service(tmp_path, ORCHESTRATOR_PROJECTS=projects) as service, Client(service.url) as client:
        held = [client.submit(python_job(FOREVER, project="research")) for _ in range(2)]
        for job in held:
            until(client, job.id, running)
        third = client.submit(python_job("pass", project="research"))
        waiting = until(client, third.id, lambda job: "research" in job.reason)
        assert (waiting.state, waiting.reason) == ("QUEUED", "waits: project research runs 2 jobs; its limit is 2")
        passing = client.submit(python_job("pass", project="other"))
        assert until(client, passing.id, ended).state == "SUCCEEDED"
        large = client.submit(python_job("pass", workers=2, project="small"))
        refused = until(client, large.id, lambda job: "devices" in job.reason)
        assert refused.reason == "needs 2 devices, more than the 1 of project small; cancel it"
        use = {project.name: project for project in client.projects()}
        assert (use["research"].max_jobs, use["research"].use[0].jobs, use["research"].use[0].queued) == (2, 2, 1)
        client.suspend(held[0].id)
        assert until(client, third.id, ended).state == "SUCCEEDED", "a suspended job does not count"


def test_a_cluster_runs_at_most_its_limit_of_jobs(tmp_path: Path) -> None:
    with quick_service(tmp_path, ORCHESTRATOR_MAX_JOBS="1") as service, Client(service.url) as client:
        first = until(client, client.submit(python_job(FOREVER)).id, running)
        second = client.submit(python_job("pass"))
        waiting = until(client, second.id, lambda job: "at most" in job.reason)
        assert waiting.reason == "waits: the cluster runs 1 job; its limit is 1"
        (cluster,) = client.clusters()
        assert (cluster.slots.used, cluster.slots.total, cluster.slots.free) == (1, 4, 3)
        assert cluster.jobs == {"RUNNING": 1, "QUEUED": 1}
        assert cluster.lease is not None
        assert not cluster.lease.expired
        client.cancel(first.id)
        assert until(client, second.id, ended).state == "SUCCEEDED"
        assert client.clusters()[0].jobs == {}
