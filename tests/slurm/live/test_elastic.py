"""Elastic jobs on a real Slurm: they shrink when a node is lost, and grow back by a new attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.slurm.live.lab import Lab

pytestmark = pytest.mark.timeout(1200)


def test_an_elastic_job_shrinks_without_a_lost_node_and_grows_back(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab()
    job = lab.submit(
        trainer={"steps": 20_000},
        topology={"nodes": "1:3", "workers_per_node": 1},
        supervise={"backoff_s": [0.1, 0.2], "grow_back_after_s": 3},
    )
    lab.until(job, lambda job: job.world_size == 3 and (job.step or 0) >= 15)
    lab.slurm.kill_node("n3")
    lab.until(job, lambda job: job.world_size == 2 and job.attempts == 1)
    grown = lab.until(job, lambda job: job.attempts == 2 and job.world_size == 3)
    assert not grown.ended
    last = list(lab.client.attempts(job))[-1]
    assert (last.excluded_nodes, last.nodes) == (["n3"], "1:3"), lab.sentences(job)
    assert "to grow from 2 to 3 nodes" in lab.sentences(job)
    assert "n3" not in lab.slurm.run("squeue", "-h", "-j", lab.slurm_id(job), "-o", "%N")
    lab.at_step(job, (grown.step or 0) + 10)
    lab.client.cancel(job)
    lab.until(job, lambda job: job.ended)
    steps = sorted(set(lab.steps(job)))
    assert steps == list(range(1, len(steps) + 1))


def test_an_elastic_job_that_lost_its_first_node_is_no_zombie(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 300}, topology={"nodes": "1:3", "workers_per_node": 1})
    lab.until(job, lambda job: job.world_size == 3 and (job.step or 0) >= 15)
    first = lab.slurm_id(job)
    lab.slurm.kill_node("n1")
    done = lab.succeeded(job)
    assert done.attempts == 2, lab.sentences(job)
    assert next(state for number, _, state in lab.slurm_jobs(job) if number == first) != "RUNNING"
    assert list(lab.client.attempts(job))[-1].excluded_nodes == ["n1"]
