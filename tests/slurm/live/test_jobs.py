"""The bundled trainer on a real Slurm: it trains and recovers."""

from __future__ import annotations

import pytest

from tests.slurm.live.lab import Lab

pytestmark = pytest.mark.timeout(1200)
LONG = {"steps": 150}


@pytest.mark.smoke
def test_a_killed_worker_restarts_in_place_and_the_job_succeeds(lab: Lab) -> None:
    job = lab.submit(topology={"nodes": "2", "workers_per_node": 2}, trainer=LONG)
    lab.at_step(job, 25)
    lab.kill(job, replica=1, rank=0)
    done = lab.succeeded(job)
    assert (done.world_size, done.attempts, len(lab.slurm_jobs(job))) == (4, 1, 1)
    assert "restart.in_place" in lab.kinds(job)
    assert sorted(set(lab.steps(job))) == list(range(1, 151))


def test_a_killed_agent_is_noticed_at_once_and_a_new_attempt_goes_on(lab: Lab) -> None:
    job = lab.submit(trainer=LONG)
    lab.at_step(job, 25)
    lab.kill(job, replica=1, agents=True)
    done = lab.succeeded(job)
    assert done.attempts == 2
    assert "was killed by SIGKILL" in lab.sentences(job)
    assert lab.kinds(job).count("restored") >= 1
    assert [state for _, _, state in lab.slurm_jobs(job)].count("COMPLETED") == 1


@pytest.mark.smoke
def test_a_job_on_a_dead_node_continues_on_other_nodes(lab: Lab) -> None:
    job = lab.submit(trainer=LONG)
    lab.at_step(job, 25)
    nodes = lab.slurm.run("squeue", "-h", "-j", lab.slurm_id(job), "-o", "%N").strip()
    assert nodes == "n[1-2]"
    lab.slurm.kill_node("n2")
    done = lab.succeeded(job)
    attempts = list(lab.client.attempts(job))
    assert done.attempts == 2
    assert attempts[-1].excluded_nodes == ["n2"], lab.sentences(job)
    assert lab.kinds(job).count("restored") >= 1


def test_a_job_that_needs_every_node_waits_for_the_one_that_died(lab: Lab) -> None:
    """The dead node has a record, but there is no other node."""
    job = lab.submit(trainer=LONG, topology={"nodes": "4", "workers_per_node": 1})
    lab.at_step(job, 25)
    lab.slurm.kill_node("n2")
    waiting = lab.until(job, lambda job: (job.attempts == 2 and "waits in Slurm's queue" in job.reason) or job.ended)
    assert "nodes that it needs are down, drained or reserved" in waiting.reason, waiting.reason
    lab.slurm.start_node("n2")
    done = lab.succeeded(job)
    assert (done.attempts, "restored" in lab.kinds(job)) == (2, True), lab.sentences(job)


@pytest.mark.smoke
def test_a_cancelled_job_leaves_nothing(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 10_000})
    lab.at_step(job, 5)
    lab.client.cancel(job)
    done = lab.until(job, lambda job: job.ended)
    assert (done.state, done.reason) == ("CANCELLED", "cancelled by its owner")
    assert list(lab.processes(job)) == []
