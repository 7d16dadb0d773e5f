"""The agent as a user meets it: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from tests.elastic.harness import ELASTICRUN, GUARD, ROOT, SCRIPTS, Job, alive, c10d, free_port, wait_for
from trainer.contract.agent_record import parse_agent_record
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import FailureKind
from trainer.elastic.records.record import identify_process

TWO = "--nproc-per-node=2"
STEADY, COLLECTIVE, BROKEN = (str(SCRIPTS / name) for name in ("steady.py", "collective.py", "broken.py"))
FAST = "--monitor-interval=0.05"


def test_the_agent_introduces_itself_before_it_imports_torch(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(FAST, STEADY, str(tmp_path / "finish"))
    wait_for((agent.folder / "agent.json").exists, "agent.json")
    record = parse_agent_record(json.loads((agent.folder / "agent.json").read_text()))
    assert record.process == identify_process(agent.process.pid)
    assert (record.claim, record.incarnation) == ("mine", 1)
    assert "torch" not in Path(f"/proc/{agent.process.pid}/maps").read_text()


def test_a_finished_script_is_a_success(job: Job, tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    agent = job.policy().start(TWO, FAST, STEADY, str(tmp_path / "finish"))
    assert agent.wait() == 0
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    assert [event["kind"] for event in agent.events()] == ["agent.started", "generation.started", "agent.exited"]


def test_every_killed_worker_recovers_and_the_generation_rises(job: Job, tmp_path: Path) -> None:
    kills = 4
    agent = job.policy(max_restarts=kills).start(TWO, FAST, COLLECTIVE, str(tmp_path / "finish"))
    to_first_line = []
    for generation in range(1, kills + 1):
        pids = agent.pids(generation)
        wait_for(lambda g=generation: {e["rank"] for e in agent.progress(g)} == {0, 1}, "step of both ranks")
        killed_at = time.time()
        os.kill(pids[generation % 2], signal.SIGKILL)
        wait_for(lambda g=generation: agent.progress(g + 1), "step after the kill")
        to_first_line.append(agent.progress(generation + 1)[0]["first_line"] - killed_at)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    record = agent.exit_record()
    assert (record.outcome, record.generation, record.restarts) == (Outcome.SUCCEEDED, kills + 1, kills)
    failures = agent.events("worker.failed")
    assert [e["evidence"]["rank"] for e in failures] == [g % 2 for g in range(1, kills + 1)]
    assert {e["evidence"]["signal"] for e in failures} == {"SIGKILL"}
    assert len(agent.events("restart.in_place")) == kills
    print("kill to first line, s:", sorted(round(seconds, 3) for seconds in to_first_line))


@pytest.mark.long
def test_a_stretch_of_progress_gives_the_restarts_back(job: Job, tmp_path: Path) -> None:
    """One restart is allowed and three are made; the fourth kill comes before any step."""
    agent = job.policy(max_restarts=1, refund_after_s=1.0).start(FAST, COLLECTIVE, str(tmp_path / "finish"))
    for generation in range(1, 5):
        pid = agent.pids(generation)[0]
        if generation < 4:
            wait_for(lambda g=generation: agent.progress(g), "step")
            time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
    assert agent.wait() == 1
    assert agent.exit_record().restarts == 3
    assert "all 1 restarts in place are used up" in agent.events("agent.exited")[0]["sentence"]


def test_a_deterministic_error_ends_the_job_with_its_traceback_and_few_restarts(job: Job) -> None:
    agent = job.policy(max_restarts=5).start(TWO, FAST, BROKEN, "1")
    assert agent.wait() == 1
    record = agent.exit_record()
    assert (record.outcome, record.restarts) == (Outcome.FAILED, 1)
    assert record.failure is not None
    assert record.failure.kind is FailureKind.APPLICATION
    assert (record.failure.rank, record.failure.exit_code) == (1, 1)
    assert record.failure.message == "ValueError: the data set is empty"
    assert "broken.py" in (record.failure.traceback or "")
    assert agent.events("worker.failed")[0]["evidence"]["collateral_ranks"] == [0]
    assert "twice in a row" in agent.events("agent.exited")[0]["sentence"]


def test_a_missing_script_is_named_at_once(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=5).start(FAST, str(tmp_path / "nowhere.py"))
    assert agent.wait() == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.LAUNCH
    assert "nowhere.py" in failure.message
    assert not agent.events("generation.started")


@pytest.mark.long
def test_a_missing_module_is_not_restarted(job: Job) -> None:
    agent = job.policy(max_restarts=5).start(FAST, "-m", "no_such_module_at_all")
    assert agent.wait() == 1
    record = agent.exit_record()
    assert record.failure is not None
    assert (record.failure.kind, record.restarts) == (FailureKind.LAUNCH, 0)
    assert "no_such_module_at_all" in record.failure.message


@pytest.mark.smoke
@pytest.mark.long
def test_a_taken_port_fails_promptly_and_is_named(job: Job) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        agent = job.policy(max_restarts=5).start("--nnodes=2", *c10d(port, host=True), STEADY, "x")
        assert agent.wait(90) == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.RENDEZVOUS
    assert str(port) in failure.message


def test_a_signal_stops_the_workers_and_reads_as_preemption(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(TWO, FAST, STEADY, str(tmp_path / "finish"))
    pids = agent.pids(1)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.long
def test_a_signal_during_the_import_of_torch_still_leaves_an_exit_record(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(FAST, STEADY, str(tmp_path / "finish"))
    wait_for((agent.folder / "agent.json").exists, "agent.json")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED


def test_the_services_request_stops_the_agent_and_reads_as_cancellation(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(FAST, STEADY, str(tmp_path / "finish"))
    agent.pids(1)
    (job.attempt / "desired.json").write_text('{"state": "stop"}')
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.CANCELLED


def test_no_worker_outlives_a_killed_agent(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(TWO, FAST, STEADY, str(tmp_path / "finish"), "--deaf")
    pids = agent.pids(1)
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    agent.process.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids.values()), "end of the workers")


def test_a_second_submission_is_refused_and_starts_nothing(job: Job, tmp_path: Path) -> None:
    first = job.policy().start(FAST, STEADY, str(tmp_path / "finish"))
    wait_for((first.folder / "agent.json").exists, "agent.json")
    second = job.start(FAST, STEADY, str(tmp_path / "finish"), claim="other")
    assert second.wait(90) == 3
    assert not second.folder.exists()
    assert "refused" in second.printed()


@pytest.mark.long
def test_a_failure_that_a_restart_healed_is_not_the_end_of_a_lost_group(job: Job, tmp_path: Path) -> None:
    port, finish = free_port(), str(tmp_path / "finish")
    job.policy(max_restarts=3)
    host, other = (
        job.start("--nnodes=2", *c10d(port, host=replica == 0), STEADY, finish, replica=replica) for replica in (0, 1)
    )
    (pid,) = other.pids(1).values()
    os.kill(pid, signal.SIGKILL)
    other.pids(2)
    wait_for(lambda: host.progress(2) and other.progress(2), "step of both ranks after the restart")
    host.process.kill()
    assert other.wait() == 1
    failure = other.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.RENDEZVOUS
    assert "the rendezvous store is lost" in failure.message


@pytest.mark.long
def test_by_hand_a_refusal_names_the_launcher_once() -> None:
    command = [*ELASTICRUN, "--nproc-per-node=xpu", STEADY]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "elasticrun: --nproc-per-node=xpu, but torch finds no XPU on this node\n"


@pytest.mark.long
def test_by_hand_it_is_a_torchrun_that_restarts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint('restart', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\nsys.exit(7)\n"
    )
    command = [*ELASTICRUN, "--max-restarts=2", FAST, str(script)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stdout.split() == ["restart", "0", "restart", "1", "restart", "2"]
    assert done.stderr == "elasticrun: rank 0: the worker ended with exit code 7\n"


def test_by_hand_the_first_failing_ranks_traceback_comes_last_after_one_sentence(tmp_path: Path) -> None:
    command = [*ELASTICRUN, TWO, FAST, BROKEN, "1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.rpartition("elasticrun: ")[2].splitlines()
    assert last[0] == "rank 1: ValueError: the data set is empty"
    assert last[1] == "Traceback (most recent call last):"
    assert last[-1] == "ValueError: the data set is empty"
    assert "broken.py" in last[2]


def test_a_guarded_torchrun_keeps_the_same_books(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(*torchrun("--max-restarts=1"), STEADY, str(tmp_path / "finish"), program=GUARD)
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    assert (agent.folder / "g1" / "local-1" / "log").exists()


@pytest.mark.long
def test_a_guarded_failure_is_explained_by_the_workers_log(job: Job) -> None:
    agent = job.policy().start(*torchrun("--max-restarts=1"), BROKEN, "1", program=GUARD)
    assert agent.wait() == 1
    record = agent.exit_record()
    assert (record.outcome, record.generation, record.restarts) == (Outcome.FAILED, 2, 1)
    assert record.failure is not None
    assert (record.failure.message, record.failure.rank) == ("ValueError: the data set is empty", 1)


@pytest.mark.long
def test_a_guard_journals_each_generation_of_workers_that_report_nothing(job: Job) -> None:
    """Without it the service would hold a group that computes for one that never formed."""
    agent = job.policy().start(*torchrun("--nnodes=1", "--max-restarts=1"), BROKEN, "1", program=GUARD)
    wait_for(lambda: agent.events("generation.started"), "word of the first generation")
    assert agent.wait() == 1
    told = [(event["generation"], event["evidence"]["world_size"]) for event in agent.events("generation.started")]  # type: ignore[index]
    assert told == [(1, 2), (2, 2)]
    kinds = [event["kind"] for event in agent.events()]
    assert kinds.index("generation.started") < kinds.index("worker.failed")


@pytest.mark.long
def test_a_guarded_torchrun_is_stopped_and_dies_with_its_guard(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(*torchrun(), STEADY, str(tmp_path / "finish"), program=GUARD)
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    before = len(agent.progress(1))
    agent.process.kill()
    agent.wait()
    time.sleep(0.5)
    settled = len(agent.progress(1))
    time.sleep(0.3)
    assert before <= settled == len(agent.progress(1))
    second = job.start(*torchrun(), STEADY, str(tmp_path / "finish"), program=GUARD)
    wait_for(lambda: {e["rank"] for e in second.progress(1)} == {0, 1}, "step of both ranks")
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(90) == 143
    assert second.exit_record().outcome is Outcome.PREEMPTED


def torchrun(*flags: str) -> list[str]:
    child = str(ROOT / "trainer" / "elastic" / "child.py")
    known = vars(get_args_parser().parse_args(["script.py"]))
    quickly = ["--shutdown-timeout=2"] if "shutdown_timeout" in known else []  # not in 2.8, which waits for 30 s
    launcher = [sys.executable, "-m", "torch.distributed.run", TWO, *quickly, *flags]
    return [*launcher, "--no-python", sys.executable, "-I", "-S", child, sys.executable, "-u"]
