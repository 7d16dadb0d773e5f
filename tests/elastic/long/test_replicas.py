"""Groups of several agents: recovery, the loss and return of an agent, and the first cause of a failure."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import AGREEING, COLLECTIVE, STEADY, Job, c10d, free_port, wait_for
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import FailureKind, is_collateral


def test_a_replica_that_waits_for_the_store_can_be_stopped_and_fails_after_its_time_out(job: Job) -> None:
    port = free_port()
    job.policy()
    impatient, patient = (c10d(port, host=None, read_timeout_s=seconds) for seconds in (1, 60))
    waiting = job.start("--nnodes=2", *patient, STEADY, "x", replica=1)
    failed = job.start("--nnodes=2", *impatient, STEADY, "x", replica=2)
    assert failed.wait() == 1
    failure = failed.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.RENDEZVOUS
    assert f"127.0.0.1:{port}" in failure.message
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.wait(90) == 143


def test_a_requeued_agent_is_the_next_incarnation_and_continues_the_generations(job: Job, tmp_path: Path) -> None:
    first = job.policy().start(STEADY, str(tmp_path / "finish"))
    first.pids(1)
    first.process.kill()
    first.wait()
    second = job.start(STEADY, str(tmp_path / "finish"))
    second.pids(2)
    assert second.folder.name == "2"


@pytest.mark.smoke
def test_two_replicas_recover_together_from_the_kill_of_one_worker(job: Job, tmp_path: Path) -> None:
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=3)
    agents = [
        job.start("--nnodes=2", *c10d(port, host=replica == 0), COLLECTIVE, finish, replica=replica)
        for replica in (0, 1)
    ]
    wait_for(lambda: all(agent.progress(1) for agent in agents), "first steps")
    os.kill(next(iter(agents[1].pids(1).values())), signal.SIGKILL)
    wait_for(lambda: all(agent.progress(2) for agent in agents), "steps after the kill")
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert [agent.exit_record().generation for agent in agents] == [2, 2]


def test_a_group_continues_without_a_lost_replica_and_takes_it_in_again(job: Job, tmp_path: Path) -> None:
    """No restart is allowed here, so neither may cost one."""
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=0)
    # The first agent waits for the second, which may start seconds later on a busy machine.
    flags = [["--nnodes=1:2", *c10d(port, host=host, last_call_s=20)] for host in (True, False)]
    host, guest = (job.start(*flags[replica], COLLECTIVE, finish, replica=replica) for replica in (0, 1))
    wait_for(lambda: host.progress(1) and guest.progress(1), "first steps of two")
    guest.pids(1)
    guest.process.kill()
    wait_for(lambda: host.progress(2), "steps without the lost replica")
    again = job.start(*flags[1], COLLECTIVE, finish, replica=1)
    wait_for(lambda: host.progress(3) and again.progress(3), "steps with it")
    (tmp_path / "finish").touch()
    assert [host.wait(), again.wait()] == [0, 0]
    [shrunk], [grew] = host.events("group.shrunk"), host.events("group.grew")
    assert host.events("restart.in_place") == []
    wanted = ("rung", "world_size", "from_world_size", "generation")
    assert [shrunk["evidence"][name] for name in wanted] == ["shrink", 1, 2, 2]
    assert [grew["evidence"][name] for name in wanted] == ["grow", 2, 1, 3]
    assert host.exit_record().restarts == 0


def test_the_replica_at_fault_has_the_cause_and_the_other_one_has_lost_a_peer(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if os.environ['ORCHESTRATOR_REPLICA'] == '1':\n"
        "    raise KeyError('bad batch')\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    port = free_port()
    job.policy(max_restarts=0)
    hosts = [job.start("--nnodes=2", *c10d(port, host=r == 0), str(script), replica=r) for r in (0, 1)]
    assert [agent.wait() for agent in hosts] == [1, 1]
    lost, cause = (agent.exit_record().failure for agent in hosts)
    assert lost is not None
    assert cause is not None
    assert cause.message == "KeyError: 'bad batch'"
    assert is_collateral(lost) or lost.kind is FailureKind.RENDEZVOUS  # depends on which it sees first
    assert not is_collateral(cause)


@pytest.mark.smoke
@pytest.mark.parametrize("stopped", [0, 1], ids=["the host of the store", "the other"])
def test_a_replica_that_is_stopped_costs_the_others_no_failure(job: Job, tmp_path: Path, stopped: int) -> None:
    """Its workers agree with all others on a stop, as after an eviction. No restart is allowed here."""
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=0, stop_timeout_s=20)
    agents = [
        job.start("--nnodes=1:2", *c10d(port, host=replica == 0, last_call_s=20), AGREEING, finish, replica=replica)
        for replica in (0, 1)
    ]
    wait_for(lambda: all(agent.progress(1) for agent in agents), "steps of two")
    agents[stopped].process.send_signal(signal.SIGTERM)
    assert agents[stopped].wait() == 143
    other = agents[1 - stopped]
    wait_for(lambda: other.progress(2), "steps without the stopped replica")
    (tmp_path / "finish").touch()
    assert other.wait() == 0, other.printed()
    assert [agent.exit_record().outcome for agent in agents] == [
        Outcome.PREEMPTED if replica == stopped else Outcome.SUCCEEDED for replica in (0, 1)
    ]
    [shrunk] = other.events("group.shrunk")
    assert "the group lost 127.0.0.1" in str(shrunk["sentence"])
    assert [agent.events("worker.failed") for agent in agents] == [[], []]
    assert other.exit_record().restarts == 0
