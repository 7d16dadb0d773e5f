"""Groups of several agents: they recover together, lose one and take it in again, tell the cause from the loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.elastic.harness import SCRIPTS, Job, c10d, free_port, wait_for
from trainer.contract.failure import FailureKind, is_collateral

TWO = "--nproc-per-node=2"
STEADY, COLLECTIVE, BROKEN = (str(SCRIPTS / name) for name in ("steady.py", "collective.py", "broken.py"))
FAST = "--monitor-interval=0.05"


def test_a_replica_without_a_store_says_so_and_can_be_stopped_while_it_waits(job: Job) -> None:
    port = free_port()
    job.policy()
    impatient, patient = (c10d(port, host=False, read_timeout_s=seconds) for seconds in (1, 60))
    waiting = job.start("--nnodes=2", *patient, STEADY, "x", replica=1)
    failed = job.start("--nnodes=2", *impatient, STEADY, "x", replica=2)
    assert failed.wait() == 1
    failure = failed.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.RENDEZVOUS
    assert f"127.0.0.1:{port}" in failure.message
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.wait(90) == 143


def test_a_requeued_agent_opens_the_next_incarnation_and_goes_on_counting_generations(job: Job, tmp_path: Path) -> None:
    first = job.policy().start(FAST, STEADY, str(tmp_path / "finish"))
    first.pids(1)
    first.process.kill()
    first.wait()
    second = job.start(FAST, STEADY, str(tmp_path / "finish"))
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
    killed_at = time.monotonic()
    os.kill(next(iter(agents[1].pids(1).values())), signal.SIGKILL)
    wait_for(lambda: all(agent.progress(2) for agent in agents), "steps after the kill")
    print("two replicas, kill to next step, s:", round(time.monotonic() - killed_at, 2))
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert [agent.exit_record().generation for agent in agents] == [2, 2]


def test_a_group_goes_on_without_a_lost_replica_and_takes_it_in_again_for_nothing(job: Job, tmp_path: Path) -> None:
    """Neither costs a restart: none is allowed here."""
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=0)
    # The first to come waits for the second: on a busy machine that one may be seconds later.
    flags = [["--nnodes=1:2", *c10d(port, host=host, last_call_s=20)] for host in (True, False)]
    host, guest = (job.start(*flags[replica], COLLECTIVE, finish, replica=replica) for replica in (0, 1))
    wait_for(lambda: host.progress(1) and guest.progress(1), "first steps of two")
    guest.pids(1)
    guest.process.kill()
    wait_for(lambda: host.progress(2), "steps without the lost replica", 60)
    again = job.start(*flags[1], COLLECTIVE, finish, replica=1)
    wait_for(lambda: host.progress(3) and again.progress(3), "steps with it", 60)
    (tmp_path / "finish").touch()
    assert [host.wait(), again.wait()] == [0, 0]
    [shrunk], [grew] = host.events("group.shrunk"), host.events("group.grew")
    assert host.events("restart.in_place") == []
    wanted = ("rung", "world_size", "from_world_size", "generation")
    assert [shrunk["evidence"][name] for name in wanted] == ["shrink", 1, 2, 2]
    assert [grew["evidence"][name] for name in wanted] == ["grow", 2, 1, 3]
    assert 0 < shrunk["evidence"]["seconds"] < 60
    assert host.exit_record().restarts == 0


def test_of_two_replicas_the_one_at_fault_tells_the_cause_and_the_other_says_it_lost_a_peer(
    job: Job, tmp_path: Path
) -> None:
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
    assert is_collateral(lost) or lost.kind is FailureKind.RENDEZVOUS  # whichever it sees first
    assert not is_collateral(cause)
