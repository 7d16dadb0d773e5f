"""A local attempt whose agents are alive is not looked at again, until one of them ends. With real processes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.backends.local import client
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.living import LivingAgents
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import CHECK_S
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.simulator.virtual_clock import VirtualClock
from tests.descriptors import count_descriptors
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, render_agent_record

KEY = AttemptKey("job", 1)
REPLICAS = 2


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that the run directory names as agents. They end with their standard input."""
    started = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(REPLICAS)
    ]
    for replica, process in enumerate(started):
        life = layout.replica_dir(tmp_path / KEY.job_id, KEY.number, replica) / "1"
        life.mkdir(parents=True)
        ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        identity = ProcessIdentity(
            pid=process.pid, start_ticks=ticks, boot_id=client.boot_id(), host=client.host_name()
        )
        record = AgentRecord(process=identity, claim="claim", incarnation=1, at="2026-11-20T12:00:00Z")
        (life / layout.AGENT).write_text(json.dumps(render_agent_record(record)))
    yield started
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process. It stays a zombie, as an agent does whose parent is busy."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def backend_of(root: Path, living: LivingAgents) -> LocalBackend:
    return LocalBackend(root, slots=1, living=living)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process no free descriptor."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held:
            os.close(descriptor)


def hide(root: Path) -> None:
    """Let every look at the run directory find nothing."""
    (root / KEY.job_id).rename(root / "elsewhere")


def test_living_agents_are_not_looked_at_again(
    tmp_path: Path, agents: list[subprocess.Popen[bytes]], clock: VirtualClock
) -> None:
    backend = backend_of(tmp_path, LivingAgents(monotonic=clock.monotonic))
    seen = backend.observe({KEY: REPLICAS})[KEY]
    assert seen.presence is Presence.RUNNING
    hide(tmp_path)
    assert backend.observe({KEY: REPLICAS})[KEY] is seen
    clock.advance(CHECK_S)
    assert backend.observe({KEY: REPLICAS})[KEY].presence is Presence.ABSENT


def test_the_end_of_any_agent_is_seen_at_once(tmp_path: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    backend = backend_of(tmp_path, LivingAgents())
    backend.observe({KEY: REPLICAS})
    end(agents[1])
    seen = backend.observe({KEY: REPLICAS})[KEY]
    assert [replica.liveness for replica in seen.replicas] == [Liveness.ALIVE, Liveness.DEAD]
    end(agents[0])
    assert backend.observe({KEY: REPLICAS})[KEY].presence is Presence.GONE


def test_without_descriptors_every_attempt_is_looked_at(tmp_path: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    backend = backend_of(tmp_path, LivingAgents(max_agents=REPLICAS - 1))
    backend.observe({KEY: REPLICAS})
    hide(tmp_path)
    assert backend.observe({KEY: REPLICAS})[KEY].presence is Presence.ABSENT


def test_a_look_at_a_process_that_fails_says_nothing_about_it(
    agents: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_pids", lambda: [agents[0].pid])
    identity = ProcessIdentity(pid=agents[0].pid, start_ticks=0, boot_id=client.boot_id(), host=client.host_name())
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            client.runs(identity)
        with pytest.raises(OSError, match="Too many open files"):
            list(client.marked(KEY, Path()))


def test_a_living_agent_is_not_taken_for_dead_if_descriptors_run_out(
    tmp_path: Path, agents: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = client.runs

    def take_all_and_look(process: ProcessIdentity) -> bool:
        with no_descriptors():
            return runs(process)

    monkeypatch.setattr(client, "runs", take_all_and_look)
    assert backend_of(tmp_path, LivingAgents()).observe({KEY: REPLICAS})[KEY].presence is Presence.UNKNOWN


def test_an_agent_whose_pid_another_process_has_is_not_remembered(
    tmp_path: Path, agents: list[subprocess.Popen[bytes]]
) -> None:
    living = LivingAgents()
    seen = backend_of(tmp_path, LivingAgents()).observe({KEY: REPLICAS})[KEY]
    gone = ProcessIdentity(pid=agents[0].pid, start_ticks=1, boot_id="", host="")
    living.remember(KEY, seen, [gone])
    assert living.refresh({KEY}) == {}


def test_the_descriptors_of_ended_attempts_are_given_back(
    tmp_path: Path, agents: list[subprocess.Popen[bytes]]
) -> None:
    backend = backend_of(tmp_path, LivingAgents())
    before = count_descriptors()
    backend.observe({KEY: REPLICAS})
    assert count_descriptors() == before + REPLICAS
    backend.observe({})
    assert count_descriptors() == before
