"""An agent that dies is replaced: its workers end, and another agent starts the next generation."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.recovery.agents import find_agent
from tests.elastic.harness import (
    COLLECTIVE,
    ELASTICRUN,
    ROOT,
    STEADY,
    TWO,
    Agent,
    Job,
    alive,
    c10d,
    free_port,
    wait_for,
)
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.health.processes import descendants, is_gone, stat_fields
from trainer.elastic.keeper_line import AgentState, KeeperLine, Notes
from trainer.elastic.memory_files import KeptFiles, MemoryFiles
from trainer.elastic.records.history import History
from trainer.elastic.rendezvous.join import _rejoin
from trainer.elastic.rendezvous.round_document import Ending, Limits, Member, Round, Stage


def kill_agent(agent: Agent) -> None:
    pid = agent.agent_pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), "end of the agent")


def test_a_killed_agent_costs_a_generation_and_no_restart(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=0).start(TWO, COLLECTIVE, str(tmp_path / "finish"))
    for generation in (1, 2):
        agent.await_steps(generation)
        pids = agent.pids(generation)
        kill_agent(agent)
        agent.await_steps(generation + 1)
        assert not any(map(alive, pids.values()))
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.printed()
    record = agent.exit_record()
    assert (record.outcome, record.generation, record.restarts) == (Outcome.SUCCEEDED, 3, 0)
    assert [event["sentence"] for event in agent.events("agent.lost")] == [
        "the agent was killed by SIGKILL; its workers end, and another agent continues"
    ] * 2
    assert agent.events("worker.failed") == []
    restarts = [event["sentence"] for event in agent.events("restart.in_place")]
    assert all("the agent of replica 0 was killed by SIGKILL" in str(sentence) for sentence in restarts)
    assert len(restarts) == 2


@pytest.mark.long
def test_failures_before_the_agents_death_still_count(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=1).start(TWO, COLLECTIVE, str(tmp_path / "finish"))
    agent.await_steps(1)
    os.kill(agent.pids(1)[0], signal.SIGKILL)
    agent.await_steps(2)
    kill_agent(agent)
    agent.await_steps(3)
    os.kill(agent.pids(3)[0], signal.SIGKILL)
    assert agent.wait() == 1
    record = agent.exit_record()
    assert (record.generation, record.restarts) == (3, 1)
    assert "all 1 restarts in place are used up" in str(agent.events("agent.exited")[0]["sentence"])


@pytest.mark.long
def test_an_agent_that_is_killed_while_it_stops_leaves_no_worker(job: Job, tmp_path: Path) -> None:
    agent = job.policy(stop_timeout_s=600).start(TWO, STEADY, str(tmp_path / "finish"), "--deaf")
    pids = agent.pids(1)
    agent.await_steps(1)
    agent.process.send_signal(signal.SIGTERM)
    kill_agent(agent)
    assert agent.wait() == 143
    assert not any(map(alive, pids.values()))
    assert agent.exit_record().outcome is Outcome.PREEMPTED


@pytest.mark.long
def test_a_keeper_that_is_stopped_does_not_delay_the_agent(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=1).start(TWO, COLLECTIVE, str(tmp_path / "finish"))
    agent.await_steps(1)
    os.kill(agent.process.pid, signal.SIGSTOP)
    fill_notes(agent)
    os.kill(agent.pids(1)[0], signal.SIGKILL)
    agent.await_steps(2)
    os.kill(agent.process.pid, signal.SIGCONT)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.printed()
    assert (agent.exit_record().generation, agent.exit_record().restarts) == (2, 1)


def has_fork_server(agent: Agent) -> bool:
    return any(b"forkserver of" in shown(each.pid).replace(b"\0", b" ") for each in descendants(agent.process.pid))


def shown(pid: int) -> bytes:
    """The command line that `ps` shows."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def fill_notes(agent: Agent) -> None:
    """Fill the pipe to the keeper with empty lines."""
    keepers, agents = (pipes_of(pid) for pid in (agent.process.pid, agent.agent_pid))
    [shared] = keepers.keys() & agents.keys()
    pipe = os.open(agents[shared], os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"\n" * 512)
    os.close(pipe)


def pipes_of(pid: int) -> dict[str, Path]:
    """The pipes that a process has open besides its standard streams, by their names."""
    return {name: end for name, end in open_files(pid).items() if name.startswith("pipe:") and int(end.name) > 2}


def open_files(pid: int) -> dict[str, Path]:
    """What a process has open, by its name. It may close files meanwhile."""
    found = {}
    for end in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[str(end.readlink())] = end
    return found


def test_a_keeper_that_reads_late_holds_the_files_of_the_agent_too(job: Job, tmp_path: Path) -> None:
    """It learns of the agent and of its files at the same time."""
    agent = job.policy().start(TWO, STEADY, str(tmp_path / "finish"))
    wait_for(lambda: has_fork_server(agent), "fork server, which imports before it forks the agent")
    os.kill(agent.process.pid, signal.SIGSTOP)
    agent.await_steps(1)
    os.kill(agent.process.pid, signal.SIGCONT)
    wait_for(lambda: any("memfd:" in name for name in open_files(agent.process.pid)), "files", 30)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0


def test_agents_that_die_without_progress_end_the_attempt(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import time; time.sleep(600)")
    agent = job.policy().start(str(script))
    for _ in range(6):
        kill_agent(agent)
    assert agent.wait() == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert failure.message == "the agent was killed by SIGKILL; agents died 6 times in a row without progress"
    assert len(agent.events("agent.lost")) == 6


def test_the_twin_of_a_killed_agent_is_not_the_next_agent(job: Job, tmp_path: Path) -> None:
    """It shares the agent's memory, and so its command line (workers/late_release.py)."""
    agent = job.policy().start(TWO, STEADY, str(tmp_path / "finish"))
    agent.await_steps(1)
    pid = agent.agent_pid
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    twins = [each for each in pids if each != pid and shown(each) == shown(pid)]
    if not twins:
        pytest.skip("this system has no twins")
    (twin,) = twins
    server = int(stat_fields(pid)[1])
    os.kill(server, signal.SIGSTOP)  # it would end the twin, and fork another agent
    os.kill(twin, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: stat_fields(twin)[1] == str(server), "another parent of the twin")
    assert find_agent(agent.process.pid) is None
    os.kill(server, signal.SIGCONT)
    agent.await_steps(2)
    assert is_gone(twin)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.printed()


def test_what_a_stopped_fork_server_has_started_ends_with_the_keeper(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(TWO, STEADY, str(tmp_path / "finish"))
    agent.await_steps(1)
    below = descendants(agent.process.pid)
    os.kill(next(each.pid for each in below if each.parent == agent.process.pid), signal.SIGSTOP)
    agent.process.kill()
    wait_for(lambda: not any(alive(each.pid) for each in below), "end of all")


def test_outside_a_job_a_killed_agent_is_replaced_too(tmp_path: Path) -> None:
    script = tmp_path / "mark.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / str(os.getpid())).touch()\n"
        "while not (folder / 'finish').exists(): time.sleep(0.01)\n"
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    command = [*ELASTICRUN, str(script), str(marks)]
    with subprocess.Popen(command, env=environ | {"PYTHONPATH": str(ROOT)}) as process:
        try:
            wait_for(lambda: len(list(marks.iterdir())) == 1, "worker")
            os.kill(wait_for(lambda: find_agent(process.pid), "agent"), signal.SIGKILL)
            wait_for(lambda: len(list(marks.iterdir())) == 2, "second worker")
            below = [each.pid for each in descendants(process.pid)]
            (marks / "finish").touch()
            assert process.wait(150) == 0
        finally:
            process.kill()
    assert not any(map(alive, below))


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_group_of_two_forms_again_after_the_death_of_either_agent(job: Job, tmp_path: Path, victim: int) -> None:
    """The first agent's node serves the store. No restart is allowed here, so neither may cost one."""
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=0)
    agents = [
        job.start("--nnodes=2", *c10d(port, host=replica == 0), COLLECTIVE, finish, replica=replica)
        for replica in (0, 1)
    ]
    for generation in (1, 2):
        wait_for(lambda g=generation: all(agent.progress(g) for agent in agents), "steps")  # type: ignore[misc]
        kill_agent(agents[victim])
    wait_for(lambda: all(agent.progress(3) for agent in agents), "steps after the kills")
    below = [each.pid for agent in agents for each in descendants(agent.process.pid)]
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0], [agent.printed() for agent in agents]
    assert [agent.exit_record().generation for agent in agents] == [3, 3]
    assert [agent.events("worker.failed") for agent in agents] == [[], []]
    assert [len(agent.events("agent.lost")) for agent in agents] == [2 * (victim == 0), 2 * (victim == 1)]
    wait_for(lambda: not any(map(alive, below)), "end of all")


@pytest.mark.long
def test_an_agent_may_die_while_it_waits_for_the_other_nodes(job: Job, tmp_path: Path) -> None:
    """It has joined a round, which the other node finds when it starts."""
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=0)
    host = job.start("--nnodes=2", *c10d(port, host=True), COLLECTIVE, finish, replica=0)
    wait_for(lambda: "waiting for other nodes" in host.printed(), "the wait for the other node")
    kill_agent(host)
    guest = job.start("--nnodes=2", *c10d(port, host=False), COLLECTIVE, finish, replica=1)
    agents = [host, guest]
    wait_for(lambda: all(agent.progress(1) for agent in agents), "steps")
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0], [agent.printed() for agent in agents]
    assert [agent.exit_record().generation for agent in agents] == [1, 1]


@pytest.mark.parametrize(("known", "number"), [(3, 8), (2, 7)], ids=["it trained", "it formed without it"])
def test_an_agent_leaves_the_group_of_its_predecessor_unless_that_never_trained(known: int, number: int) -> None:
    me, other = (Member(node=name, node_rank=None, address=name, workers=1, generation=known) for name in "ab")
    formed = Round(number=7, stage=Stage.FORMED, generation=3, members=(me, other))
    limits = Limits(min_nodes=2, max_nodes=2)
    now = _rejoin(formed, before=None, ending=Ending(change="the agent was killed"), me=me, limits=limits)
    assert (now.number, now.has("a")) == (number, True)


def test_a_torn_note_is_skipped_and_the_next_one_counts() -> None:
    reading, writing = os.pipe()
    line = KeeperLine(writing, os.getpid(), None)
    line.note_state(AgentState(generation=3, node="n", pids=[7]))
    os.write(writing, b'{"state": {"gen')
    line.finish(ExitRecord(outcome=Outcome.SUCCEEDED, at="", generation=3, restarts=0), "why")
    notes = Notes()
    notes.take(os.read(reading, 1 << 16))
    assert (notes.state.generation, notes.state.node, notes.state.pids) == (3, "n", [7])
    assert notes.result == (ExitRecord(outcome=Outcome.SUCCEEDED, at="", generation=3, restarts=0), "why")
    line.close()
    os.close(reading)


def test_notes_that_nobody_reads_wait_and_only_the_newest_is_kept() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    line, notes = KeeperLine(writing, os.getpid(), None), Notes()
    for generation in range(1, 1000):
        line.note_state(AgentState(generation=generation))
    line.note_memory([[1]], [])
    notes.take(os.read(reading, 1 << 16))
    assert notes.state.generation < 999
    assert line.flush()
    notes.take(os.read(reading, 1 << 16))
    assert (notes.state.generation, notes.files) == (999, ([[1]], []))
    line.close()
    os.close(reading)


def test_the_next_agent_has_the_files_in_memory_of_the_one_that_died() -> None:
    first, kept = MemoryFiles(1), KeptFiles()
    first.add_mirrors(1)
    os.pwrite(first.copies[0][1], b"state", 0)
    os.pwrite(first.mirrors[0][0], b"other", 0)
    kept.take(os.getpid(), first.own, first.mirrors)
    first.close()
    second = MemoryFiles(1)
    second.take_over(*kept.paths())
    kept.close()
    assert (os.pread(second.copies[0][1], 5, 0), os.pread(second.mirrors[0][0], 5, 0)) == (b"state", b"other")
    second.close()


def test_files_of_an_agent_that_is_gone_replace_none() -> None:
    memory, kept = MemoryFiles(1), KeptFiles()
    kept.take(os.getpid(), memory.own, [])
    before = kept.paths()
    kept.take(2**22 + 1, memory.own, [])
    assert kept.paths() == before
    kept.close()
    memory.close()


def test_a_history_continues_in_another_process() -> None:
    history = History(None, max_restarts=1, min_nodes=1)
    history.failure = Failure(kind=FailureKind.HANG, message="still", rank=1)
    history.restarts, history.verdict = 4, "why"
    other = History(None, max_restarts=1, min_nodes=1)
    other.resume(history.render())
    assert vars(other) == vars(history)
