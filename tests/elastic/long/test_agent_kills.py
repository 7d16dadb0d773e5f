"""Agents that are killed at random moments: no step is lost beyond the newest copy, and no process stays."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from benchmarks.recovery.agents import find_agent
from tests.elastic.generations import await_steps, latest, losses, restored, settle, steps_of
from tests.elastic.harness import TWO, Agent, Job, alive, c10d, free_port, short_tmpdir, wait_for
from trainer.contract.exit_record import Outcome
from trainer.elastic.health.processes import descendants

pytestmark = pytest.mark.timeout(900)

CONFIG = {
    "preset": "nano",
    "global_batch": 6,
    "micro_batch": 1,
    "seq_len": 32,
    "snapshot_interval": 1000,
    "snapshot_memory": 1,
    "steps": 10**6,
}
SEED = 35


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A killed worker cannot delete what Python's multiprocessing made there."""
    with short_tmpdir() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def start(job: Job, *flags: str, replica: int = 0, **settings: object) -> Agent:
    config = json.dumps({**CONFIG, **settings})
    job.policy(max_restarts=0)
    return job.start(*(flags or (TWO,)), "-m", "trainer", "--config", config, replica=replica)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_continues_from_memory_and_the_curve_is_the_same(job: Job, strategy: str) -> None:
    """A copy is whole one step after its own, so at most two steps are repeated."""
    agent = start(job, strategy=strategy)
    kills = 5
    for generation in range(1, kills + 1):
        await_steps(agent, generation, 5)
        kill(agent)
    await_steps(agent, kills + 1, 5)
    assert {len(found) for found in losses(agent).values()} == {1}, "a repeated step had the same loss"
    assert {found["source"] for found in restored(agent)} == {"memory"}
    for generation in range(1, kills + 1):
        before, after = (steps_of(agent, each) for each in (generation, generation + 1))
        newest, first = max(map(max, before.values())), min(map(min, after.values()))
        assert newest - 1 <= first <= newest + 1
    assert agent.events("worker.failed") == []
    assert_stops(agent)


def test_forty_kills_at_random_moments(job: Job) -> None:
    """Some come while a group forms, some in the middle of a restart after a killed worker."""
    rng = random.Random(SEED)
    agent = start(job, strategy="ddp")
    job.policy(max_restarts=1000)
    for _ in range(40):
        pids = settle(agent)
        time.sleep(rng.uniform(0, 0.5))
        if rng.random() < 0.3:
            os.kill(rng.choice(list(pids.values())), signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.3))
        kill(agent)
        if rng.random() < 0.3:  # the next one too, soon after it has begun
            wait_for(lambda: find_agent(agent.process.pid), "the next agent")
            time.sleep(rng.uniform(0, 0.3))
            kill(agent)
    settle(agent)
    assert {len(found) for found in losses(agent).values()} == {1}
    assert len(agent.events("agent.lost")) >= 40
    assert_stops(agent)


@pytest.mark.parametrize("signals", ["keeper", "all"])
def test_an_agent_that_is_killed_at_any_moment_of_a_stop_leaves_nothing(job: Job, signals: str) -> None:
    """A scheduler signals one process or all."""
    rng = random.Random(SEED)
    for attempt in range(4):
        agent = start(Job(job.folder / str(attempt)), strategy="ddp")
        await_steps(agent, 1, 2)
        below = [each.pid for each in descendants(agent.process.pid)]
        for pid in [agent.process.pid, *(below if signals == "all" else [])]:
            os.kill(pid, signal.SIGTERM)
        time.sleep(rng.uniform(0, 0.2))
        kill(agent)
        assert agent.wait() == 143
        assert agent.exit_record().outcome is Outcome.PREEMPTED
        assert not any(map(alive, below))


def test_two_nodes_survive_twenty_deaths_of_either_agent(job: Job) -> None:
    rng, port = random.Random(SEED), free_port()
    agents = [
        start(job, "--nnodes=2", *c10d(port, host=replica == 0), replica=replica, strategy="ddp") for replica in (0, 1)
    ]
    for _ in range(20):
        generation = max(map(latest, agents))
        for agent in agents:
            await_steps(agent, generation, 3, ranks=1)
        time.sleep(rng.uniform(0, 0.5))
        kill(rng.choice(agents))
        wait_for(lambda g=generation: min(map(latest, agents)) > g, "the next generation")  # type: ignore[misc]
    for agent in agents:
        await_steps(agent, max(map(latest, agents)), 3, ranks=1)
    assert [agent.events("worker.failed") for agent in agents] == [[], []]
    assert sum(len(agent.events("agent.lost")) for agent in agents) == 20
    for agent in agents:
        agent.process.send_signal(signal.SIGTERM)
    assert {agent.wait() for agent in agents} <= {143, 1}  # one may lose the other first


def kill(agent: Agent) -> None:
    """Kill the agent, unless it has just ended, and wait until its workers have ended too."""
    pid, before = find_agent(agent.process.pid), len(agent.events("agent.lost"))
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        ended = agent.folder / "exit.json"
        wait_for(lambda: len(agent.events("agent.lost")) > before or ended.exists(), "end of the agent")


def assert_stops(agent: Agent) -> None:
    below = [each.pid for each in descendants(agent.process.pid)]
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED
    assert not any(map(alive, below))
