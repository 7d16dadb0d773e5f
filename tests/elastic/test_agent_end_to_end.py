"""The agent end to end, with real processes and real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from tests.elastic.harness import (
    BROKEN,
    CHILD,
    COLLECTIVE,
    GUARD,
    STEADY,
    TORCHRUN,
    TWO,
    Job,
    alive,
    c10d,
    elasticrun,
    free_port,
    wait_for,
)
from trainer.contract.agent_record import parse_agent_record
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import FailureKind
from trainer.elastic.health.processes import descendants
from trainer.elastic.records.record import identify_process


def test_the_agent_writes_its_identity_before_it_imports_torch(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(STEADY, str(tmp_path / "finish"))
    wait_for((agent.folder / "agent.json").exists, "agent.json")
    record = parse_agent_record(json.loads((agent.folder / "agent.json").read_text()))
    assert record.process == identify_process(agent.process.pid)
    assert (record.claim, record.incarnation) == ("mine", 1)
    assert "torch" not in Path(f"/proc/{agent.process.pid}/maps").read_text()


@pytest.mark.long
def test_a_script_that_ends_with_0_succeeds(job: Job, tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    agent = job.policy().start(TWO, STEADY, str(tmp_path / "finish"))
    assert agent.wait() == 0
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    assert [event["kind"] for event in agent.events()] == ["agent.started", "generation.started", "agent.exited"]


def test_every_killed_worker_recovers_and_the_generation_rises(job: Job, tmp_path: Path) -> None:
    """The last kill takes both workers."""
    kills = 4
    agent = job.policy(max_restarts=kills).start(TWO, COLLECTIVE, str(tmp_path / "finish"))
    for generation in range(1, kills + 1):
        pids = agent.pids(generation)
        agent.await_steps(generation)
        for rank in (0, 1) if generation == kills else (generation % 2,):
            with suppress(ProcessLookupError):  # the agent may have seen the first death, and ended the second worker
                os.kill(pids[rank], signal.SIGKILL)
        agent.await_steps(generation + 1)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    record = agent.exit_record()
    assert (record.outcome, record.generation, record.restarts) == (Outcome.SUCCEEDED, kills + 1, kills)
    failures = agent.events("worker.failed")
    assert [e["evidence"]["rank"] for e in failures[:-1]] == [g % 2 for g in range(1, kills)]
    assert {e["evidence"]["signal"] for e in failures} == {"SIGKILL"}
    assert len(agent.events("restart.in_place")) == kills


@pytest.mark.long
def test_an_error_that_repeats_ends_the_job_with_its_traceback_after_one_restart(job: Job) -> None:
    agent = job.policy(max_restarts=5).start(TWO, BROKEN, "1")
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


def test_a_missing_script_is_a_launch_failure_without_a_start(job: Job, tmp_path: Path) -> None:
    agent = job.policy(max_restarts=5).start(str(tmp_path / "nowhere.py"))
    assert agent.wait() == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.LAUNCH
    assert "nowhere.py" in failure.message
    assert not agent.events("generation.started")


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.parametrize("host", [True, None])
def test_a_taken_port_is_a_rendezvous_failure_that_names_the_port(job: Job, host: bool | None) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        agent = job.policy(max_restarts=5).start("--nnodes=2", *c10d(port, host=host), STEADY, "x")
        assert agent.wait(90) == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.RENDEZVOUS
    assert str(port) in failure.message


@pytest.mark.long
def test_an_agent_stopped_during_the_import_of_torch_writes_an_exit_record(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(STEADY, str(tmp_path / "finish"))
    wait_for((agent.folder / "agent.json").exists, "agent.json")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED


@pytest.mark.long
def test_a_stop_request_of_the_service_ends_the_agent_as_cancelled(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(STEADY, str(tmp_path / "finish"))
    agent.pids(1)
    (job.attempt / "desired.json").write_text('{"state": "stop"}')
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.CANCELLED


def test_no_worker_outlives_a_killed_agent(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(TWO, STEADY, str(tmp_path / "finish"), "--deaf")
    pids = agent.pids(1)
    agent.await_steps(1)
    agent.process.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids.values()), "end of the workers")


def test_a_second_submission_is_refused_and_starts_nothing(job: Job, tmp_path: Path) -> None:
    first = job.policy().start(STEADY, str(tmp_path / "finish"))
    wait_for((first.folder / "agent.json").exists, "agent.json")
    second = job.start(STEADY, str(tmp_path / "finish"), claim="other")
    assert second.wait(90) == 3
    assert not second.folder.exists()
    assert "refused" in second.printed()


@pytest.mark.long
def test_a_lost_group_does_not_end_with_a_failure_that_a_restart_has_settled(job: Job, tmp_path: Path) -> None:
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
    assert "1 of at least 2 nodes joined" in failure.message


@pytest.mark.long
def test_outside_a_job_a_refusal_names_the_launcher_once() -> None:
    done = elasticrun("--nproc-per-node=xpu", STEADY)
    assert done.stderr == "elasticrun: --nproc-per-node=xpu, but torch finds no XPU on this node\n"


@pytest.mark.long
def test_outside_a_job_it_counts_restarts_as_torchrun_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint('restart', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\nsys.exit(7)\n"
    )
    done = elasticrun("--max-restarts=2", str(script))
    assert done.returncode == 1
    assert done.stdout.split() == ["restart", "0", "restart", "1", "restart", "2"]
    assert done.stderr == "elasticrun: rank 0: the worker ended with exit code 7\n"


def test_outside_a_job_the_output_ends_with_a_sentence_and_the_first_failed_ranks_traceback() -> None:
    done = elasticrun(TWO, BROKEN, "1")
    assert done.returncode == 1
    last = done.stderr.rpartition("elasticrun: ")[2].splitlines()
    assert last[0] == "rank 1: ValueError: the data set is empty"
    assert last[1] == "Traceback (most recent call last):"
    assert last[-1] == "ValueError: the data set is empty"
    assert "broken.py" in last[2]


@pytest.mark.long
def test_a_guarded_torchrun_has_the_same_records(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(*torchrun("--max-restarts=1"), STEADY, str(tmp_path / "finish"), program=GUARD)
    agent.await_steps(1)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert agent.exit_record().outcome is Outcome.SUCCEEDED
    assert (agent.folder / "g1" / "local-1" / "log").exists()


@pytest.mark.long
def test_the_guard_explains_a_failure_and_journals_each_generation(job: Job) -> None:
    """The workers report nothing. Without the journal the service would not know that the group runs."""
    agent = job.policy().start(*torchrun("--nnodes=1", "--max-restarts=1"), BROKEN, "1", program=GUARD)
    wait_for(lambda: agent.events("generation.started"), "event of the first generation")
    assert agent.wait() == 1
    started = [(event["generation"], event["evidence"]["world_size"]) for event in agent.events("generation.started")]  # type: ignore[index]
    assert started == [(1, 2), (2, 2)]
    kinds = [event["kind"] for event in agent.events()]
    assert kinds.index("generation.started") < kinds.index("worker.failed")
    record = agent.exit_record()
    assert (record.outcome, record.generation, record.restarts) == (Outcome.FAILED, 2, 1)
    assert record.failure is not None
    assert (record.failure.message, record.failure.rank) == ("ValueError: the data set is empty", 1)


@pytest.mark.long
def test_a_guarded_torchrun_dies_with_its_guard_and_is_stopped_by_a_signal(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(*torchrun(), STEADY, str(tmp_path / "finish"), program=GUARD)
    agent.await_steps(1)
    below = [process.pid for process in descendants(agent.process.pid)]
    agent.process.kill()
    agent.wait()
    wait_for(lambda: not any(map(alive, below)), "end of torchrun and its workers")
    second = job.start(*torchrun(), STEADY, str(tmp_path / "finish"), program=GUARD)
    second.await_steps(1)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(90) == 143
    assert second.exit_record().outcome is Outcome.PREEMPTED


def torchrun(*flags: str) -> list[str]:
    known = vars(get_args_parser().parse_args(["script.py"]))
    quickly = ["--shutdown-timeout=2"] if "shutdown_timeout" in known else []  # torch 2.8 lacks it
    return [*TORCHRUN, TWO, *quickly, *flags, "--no-python", sys.executable, "-I", "-S", CHILD, sys.executable, "-u"]
