"""If all workers of a node have succeeded, the group knows it, whatever dies next."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.elastic.harness import SCRIPTS, Agent, Job, alive, c10d, free_port, wait_for
from trainer.contract.exit_record import Outcome
from trainer.elastic.rendezvous.document import count_key
from trainer.elastic.rendezvous.epochs import Epochs
from trainer.elastic.rendezvous.round_document import Round, parse_round

PARTED, KEY = str(SCRIPTS / "parted.py"), "elasticrun/job-1-a1"


def start_two(job: Job, folder: Path) -> list[Agent]:
    """Two nodes with one worker each. The first serves the store."""
    port = free_port()
    job.policy(max_restarts=0)
    agents = [
        job.start("--nnodes=2", *c10d(port, host=replica == 0), PARTED, str(folder), replica=replica)
        for replica in (0, 1)
    ]
    for agent in agents:
        agent.pids(1)
    wait_for(lambda: len(list(folder.glob("began-*"))) == 2, "workers")
    await_heartbeats(job)
    return agents


def await_heartbeats(job: Job) -> None:
    """Wait until the agents have heard each other. An agent that was never heard counts as blocked by a firewall."""
    store = open_store(job)
    counts = {key: store.add(key, 0) for key in (count_key(KEY, each.node) for each in read_round(job).members)}
    wait_for(lambda: all(store.add(key, 0) > count + 1 for key, count in counts.items()), "heartbeats")


def open_store(job: Job) -> TCPStore:
    newest = Epochs(job.attempt).newest()
    assert newest is not None
    return TCPStore(newest[1].address, newest[1].port, is_master=False, wait_for_workers=False)


def read_round(job: Job) -> Round:
    """The document in the store of the group."""
    return parse_round(open_store(job).get(KEY).decode())


@pytest.mark.parametrize("victim", [pytest.param(0, id="host"), pytest.param(1, id="guest", marks=pytest.mark.long)])
def test_an_agent_that_dies_after_its_workers_succeeded_is_followed_by_one_that_tells_the_group(
    job: Job, tmp_path: Path, victim: int
) -> None:
    """The other node trains on meanwhile, with the process that it has."""
    agents = start_two(job, tmp_path)
    dying, other = agents[victim], agents[1 - victim]
    worker, agent = dying.pids(1)[victim], dying.agent_pid
    os.kill(agent, signal.SIGSTOP)
    (tmp_path / f"finish-{victim}").touch()
    wait_for(lambda: not alive(worker), "end of the worker")
    wait_for(lambda: list(job.attempt.glob("finished-1-*")), "note of the success")
    os.kill(agent, signal.SIGKILL)
    assert dying.wait() == 0, dying.printed()
    (tmp_path / f"finish-{1 - victim}").touch()
    assert other.wait() == 0, other.printed()
    assert [(each.exit_record().outcome, each.exit_record().generation) for each in agents] == [
        (Outcome.SUCCEEDED, 1)
    ] * 2
    assert len(list(tmp_path.glob("began-*"))) == 2
    assert [event["sentence"] for event in dying.events("agent.lost")] == [
        "the agent was killed by SIGKILL; its workers had succeeded, and another agent tells the group"
    ]


def test_a_node_that_is_lost_after_its_success_is_not_missed(job: Job, tmp_path: Path) -> None:
    """The group could not form without it."""
    host, guest = start_two(job, tmp_path)
    agent = guest.agent_pid
    os.kill(agent, signal.SIGSTOP)  # so that it cannot tell the group
    (tmp_path / "finish-1").touch()
    wait_for(lambda: list(job.attempt.glob("finished-1-*")), "note of the success")
    guest.process.kill()
    wait_for(lambda: not alive(agent), "end of the guest")
    wait_for(lambda: len(read_round(job).members) == 1, "loss of the guest")
    (tmp_path / "finish-0").touch()
    assert host.wait() == 0, host.printed()
    assert (host.exit_record().outcome, host.exit_record().generation) == (Outcome.SUCCEEDED, 1)
    assert len(list(tmp_path.glob("began-0-*"))) == 1


@pytest.mark.long
def test_a_node_alone_has_succeeded_with_its_workers(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=0).start("--nproc-per-node=2", PARTED, str(tmp_path))
    workers, pid = agent.pids(1), agent.agent_pid
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2, "workers")
    os.kill(pid, signal.SIGSTOP)
    for rank in workers:
        (tmp_path / f"finish-{rank}").touch()
    wait_for(lambda: not any(map(alive, workers.values())), "end of the workers")
    os.kill(pid, signal.SIGKILL)
    assert agent.wait() == 0, agent.printed()
    assert len(list(tmp_path.glob("began-*"))) == 2


def test_a_node_of_which_one_worker_succeeded_trains_again(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=0).start("--nproc-per-node=2", PARTED, str(tmp_path))
    workers = agent.pids(1)
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2, "workers")
    (tmp_path / "finish-0").touch()
    wait_for(lambda: not alive(workers[0]), "end of a worker")
    os.kill(agent.agent_pid, signal.SIGKILL)
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 4, "next generation")
    (tmp_path / "finish-1").touch()
    assert agent.wait() == 0, agent.printed()
    assert agent.exit_record().generation == 2


def test_workers_that_end_with_0_because_they_are_stopped_have_not_succeeded(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "obedient.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    agent = job.policy(stop_timeout_s=600).start("--nproc-per-node=2", str(script))
    workers, pid = agent.pids(1), agent.agent_pid
    wait_for(lambda: all("ready" in agent.log(1, rank) for rank in workers), "workers")
    os.kill(workers[1], signal.SIGSTOP)  # so that the agent waits for it
    os.kill(pid, signal.SIGTERM)  # not the keeper, which would know of the stop
    wait_for(lambda: not alive(workers[0]), "end of a worker")
    os.kill(pid, signal.SIGSTOP)
    os.kill(workers[1], signal.SIGCONT)
    wait_for(lambda: not alive(workers[1]), "end of the other worker")
    os.kill(pid, signal.SIGKILL)
    assert agent.pids(2)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143


def test_a_success_that_only_the_lost_store_knew_is_not_forgotten(job: Job, tmp_path: Path) -> None:
    host, guest = start_two(job, tmp_path)
    paused, lost = guest.agent_pid, host.agent_pid
    os.kill(paused, signal.SIGSTOP)
    (tmp_path / "finish-0").touch()
    wait_for(lambda: list(job.attempt.glob("finished-1-*")), "success of the host")
    host.process.kill()
    wait_for(lambda: not alive(lost), "end of the host")
    os.kill(paused, signal.SIGCONT)
    wait_for(lambda: len(list(job.attempt.glob("store-*"))) == 3, "next store")
    (tmp_path / "finish-1").touch()
    assert guest.wait() == 0, guest.printed()
    assert (guest.exit_record().outcome, guest.exit_record().generation) == (Outcome.SUCCEEDED, 1)
    assert len(list(tmp_path.glob("began-1-*"))) == 1
