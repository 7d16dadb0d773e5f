"""Real agents that are paused for twelve seconds, with or without their workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.elastic.harness import (
    COLLECTIVE,
    STEADY,
    TWO,
    Agent,
    Job,
    alive,
    c10d,
    free_port,
    wait_for,
)
from tests.elastic.requested import await_events, evidence, request
from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredDocument
from trainer.elastic.health.processes import descendants

pytestmark = pytest.mark.timeout(300)

PAUSE_S = 12.0
whole = pytest.mark.parametrize("whole", [False, True], ids=["agent", "agent and workers"])


def pause(agent: Agent, *, whole: bool) -> None:
    keeper = agent.process.pid
    pids = [keeper, *(each.pid for each in descendants(keeper))] if whole else [agent.agent_pid]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        back_s = time.monotonic() + PAUSE_S
        wait_for(lambda: time.monotonic() > back_s, "end of the pause")
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def await_more(count: Callable[[], int], by: int) -> None:
    before = count()
    wait_for(lambda: count() >= before + by, "steps after the pause")


@whole
@pytest.mark.parametrize("has_store", [False, True], ids=["one node", "one node of two"])
def test_a_paused_agent_continues_with_its_workers(job: Job, tmp_path: Path, has_store: bool, whole: bool) -> None:
    """An agent that could take in another node has a rendezvous store, which must not count as silent."""
    flags = ["--nnodes=1:2", *c10d(free_port(), host=True)] if has_store else []
    agent = job.policy().start(*flags, TWO, STEADY, str(tmp_path / "finish"))
    pids = agent.pids(1)
    wait_for(lambda: len(agent.progress(1)) > 20, "steps")
    pause(agent, whole=whole)
    await_more(lambda: len(agent.progress(1)), by=100)
    request(job, DesiredDocument(number=1, stacks=1))
    # The agent has looked at its workers since the pause.
    assert set(evidence(await_events(agent, "stacks.saved")[0])["ranks"]) == {0, 1}
    assert all(alive(pid) for pid in pids.values())
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    assert [each["kind"] for each in agent.events() if each["kind"] != "stacks.saved"] == [
        "agent.started",
        "generation.started",
        "agent.exited",
    ]


@whole
@pytest.mark.parametrize("paused", [0, 1])
def test_a_paused_agent_of_two_rejoins_and_is_charged_no_failure(
    job: Job, tmp_path: Path, paused: int, whole: bool
) -> None:
    """No restart is allowed here. A change of the group because of its silence is not a failure of its workers."""
    agents = form(job, tmp_path, "--nnodes=1:2")
    before = newest(agents)
    pause(agents[paused], whole=whole)
    wait_for(lambda: world_size(agents[paused], newest(agents)) == 2 and steps(agents, newest(agents)), "steps of both")
    assert newest(agents) <= before + 2  # one without it, and one with it again
    finish(agents, tmp_path)
    assert [agent.events("worker.failed") for agent in agents] == [[], []]


@whole
@pytest.mark.parametrize("paused", [0, 1])
def test_a_group_of_fixed_size_waits_for_a_paused_agent_with_its_workers(
    job: Job, tmp_path: Path, paused: int, whole: bool
) -> None:
    agents = form(job, tmp_path, "--nnodes=2")
    pause(agents[paused], whole=whole)
    await_more(lambda: min(len(agent.progress(1)) for agent in agents), by=100)
    finish(agents, tmp_path)
    assert [len(agent.events("generation.started")) for agent in agents] == [1, 1]


def test_an_agent_that_is_paused_while_the_others_finish_succeeds(job: Job, tmp_path: Path) -> None:
    """The store ends with the first agent."""
    host, guest = agents = form(job, tmp_path, "--nnodes=2")
    worker = guest.pids(1)[1]
    paused = guest.agent_pid
    os.kill(paused, signal.SIGSTOP)
    (tmp_path / "finish").touch()
    assert host.wait(120) == 0
    wait_for(lambda: not alive(worker), "end of the worker")
    os.kill(paused, signal.SIGCONT)
    assert guest.wait() == 0
    assert [agent.exit_record().outcome for agent in agents] == [Outcome.SUCCEEDED, Outcome.SUCCEEDED]


def form(job: Job, tmp_path: Path, nodes: str) -> list[Agent]:
    port = free_port()
    job.policy(max_restarts=0)
    agents = [
        job.start(nodes, *c10d(port, host=r == 0, last_call_s=20), COLLECTIVE, str(tmp_path / "finish"), replica=r)
        for r in (0, 1)
    ]
    wait_for(lambda: steps(agents, newest(agents)), "first steps", 180)  # on a busy machine one may start much later
    return agents


def newest(agents: list[Agent]) -> int:
    started = [each for agent in agents for each in agent.events("generation.started")]
    return max((int(str(each["generation"])) for each in started), default=0)


def steps(agents: list[Agent], generation: int) -> bool:
    return all(agent.progress(generation) for agent in agents)


def world_size(agent: Agent, generation: int) -> int:
    started = [each for each in agent.events("generation.started") if each["generation"] == generation]
    return int(str(evidence(started[0])["world_size"])) if started else 0


def finish(agents: list[Agent], tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
