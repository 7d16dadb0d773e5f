"""Elastic jobs on a real Slurm: they shrink after a lost node, and grow back in a new attempt."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.live.lab import BY_REST, Lab, soon

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


def test_an_elastic_job_continues_without_the_node_of_its_script(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 200}, topology={"nodes": "1:3", "workers_per_node": 1})
    lab.until(job, lambda job: job.world_size == 3 and (job.step or 0) >= 15)
    slurm_id = lab.slurm_id(job)
    lab.slurm.kill_node("n1")
    lab.slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=power")
    assert lab.slurm.run("squeue", "-h", "-j", slurm_id, "-o", "%N|%T").strip() == "n[2-3]|RUNNING"
    lab.until(job, lambda _: "replica.lost" in lab.kinds(job))
    (lost,) = (event for event in lab.client.events(job) if event.kind == "replica.lost")
    assert (lost.evidence["replica"], lost.evidence["node"]) == (0, "n1"), lost
    shrunk = lab.until(job, lambda job: job.world_size == 2 or job.ended)
    lab.at_step(job, (shrunk.step or 0) + 20)
    done = lab.succeeded(job)
    assert done.attempts == 1, lab.sentences(job)
    assert done.step == 200
    assert lab.slurm.run("squeue", "-h", "-j", slurm_id) == ""


def test_an_elastic_job_without_the_node_of_its_script_saves_when_it_is_cancelled(lab: Lab) -> None:
    """Slurm takes the node as down by itself (SlurmdTimeout)."""
    job = lab.submit(
        trainer={"steps": 20_000},
        topology={"nodes": "1:3", "workers_per_node": 1},
        snapshot={"interval": "100000"},
    )
    lab.until(job, lambda job: job.world_size == 3 and (job.step or 0) >= 15)
    slurm_id = lab.slurm_id(job)
    lab.slurm.kill_node("n1")
    soon(lambda: lab.slurm.run("squeue", "-h", "-j", slurm_id, "-o", "%N").strip() == "n[2-3]", "n1 is still listed")
    shrunk = lab.until(job, lambda job: job.world_size == 2 or job.ended)
    before = lab.at_step(job, (shrunk.step or 0) + 20)
    lab.client.cancel(job)
    ended = lab.until(job, lambda job: job.ended)
    assert (ended.state, ended.attempts) == ("CANCELLED", 1), lab.sentences(job)
    saved = [snapshot.step for snapshot in lab.client.snapshots(job)]
    assert max(saved, default=0) >= (before.step or 0), lab.sentences(job)
    assert lab.slurm.run("squeue", "-h", "-j", slurm_id) == ""


@pytest.mark.skipif(BY_REST, reason="slurmrestd does not list steps without accounting")
def test_an_elastic_job_without_its_script_ends_if_nothing_of_it_is_left(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 60}, topology={"nodes": "1:2", "workers_per_node": 1})
    lab.until(job, lambda job: job.world_size == 2 and (job.step or 0) >= 15)
    slurm_id = lab.slurm_id(job)
    lab.slurm.kill_node("n1")
    lab.slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=power")
    lab.until(job, lambda job: job.world_size == 1 or job.ended)
    for pid in lab.slurm.pids("n2"):  # the task itself, so that it leaves no departure
        if b"trainer.elastic.node" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    done = lab.succeeded(job)
    assert done.attempts == 2, lab.sentences(job)
    assert f"left no record, and Slurm job {slurm_id} runs no step" in lab.sentences(job)


def test_a_waiting_job_gets_an_avoided_node_once_its_record_is_cleared(lab: Lab) -> None:
    lost = lab.submit(
        trainer={"steps": 20_000},
        topology={"nodes": "1", "workers_per_node": 1},
        placement={"nodelist": ["n4"]},
    )
    lab.at_step(lost, 5)
    lab.slurm.kill_node("n4")
    lab.until(lost, lambda job: job.attempts == 2 or job.state == "RECOVERING")
    lab.client.cancel(lost)
    lab.until(lost, lambda job: job.ended)
    (record,) = lab.client.nodes()
    assert (record.name, record.failures, record.excluded_until is not None) == ("n4", 1, True)
    lab.slurm.start_node("n4")
    lab.slurm.await_idle()
    lab.slurm.run("sbatch", "--exclusive", "-N3", "-w", "n[1-3]", "-o", "/dev/null", "--wrap", "sleep 600")
    soon(lambda: lab.slurm.run("sinfo", "-h", "-t", "alloc", "-o", "%D").strip() == "3", "three nodes are not busy")
    job = lab.submit(trainer={"steps": 20}, topology={"nodes": "1", "workers_per_node": 1})
    waits = lab.until(job, lambda job: "is avoided after a failure until" in job.reason or job.ended)
    assert "(no nodes are free for it); node n4 is avoided" in waits.reason
    (avoided,) = lab.client.why(job).avoids
    assert avoided.endswith("or until `orchestrator nodes clear n4`")
    assert lab.cli("nodes", "clear", "n4").stdout == "cleared the record of node n4 of cluster slurm\n"
    done = lab.succeeded(job)
    assert done.attempts == 1, "the job kept its place in the queue"
    assert "no longer avoids n4: its cool-down is over or its record was cleared" in lab.sentences(job)
    assert lab.client.nodes() == []
