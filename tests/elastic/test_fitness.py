"""A node that cannot carry workers for a while: the restart waits, and costs nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import SCRIPTS, Job, wait_for
from trainer.contract.failure import FailureKind
from trainer.elastic.health.fitness import Unfit, await_fitness, find_full_disk, find_want_of_memory
from trainer.elastic.health.postmortem import Death, find_failure

FAST = "--monitor-interval=0.05"


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * 1024))
        except OSError:
            return ballast


@pytest.mark.smoke
@pytest.mark.long
def test_a_restart_waits_while_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    job = Job(small_disk / "job-1")
    try:
        agent = job.policy(max_restarts=1).start(FAST, str(SCRIPTS / "steady.py"), str(tmp_path / "finish"))
        pid = agent.pids(1)[0]
        wait_for(lambda: agent.progress(1), "first step")
        agent.say("a line of the log has its page before the disk is full")
        ballast = fill(small_disk)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "waiting, " in agent.printed(), "word that it waits")
        assert agent.process.poll() is None
        assert len(agent.events("generation.started")) == 1
        ballast.unlink()
        agent.pids(2)
        (tmp_path / "finish").touch()
        assert agent.wait() == 0
        (waited,) = agent.events("node.waited")
        assert "No space left on device" in str(waited["sentence"])
        assert len(agent.events("generation.started")) == 2
    finally:
        job.end()


def test_a_worker_that_could_not_write_why_it_failed_failed_of_the_disk(small_disk: Path) -> None:
    fill(small_disk)
    death = Death(rank=0, local_rank=0, exit_code=1, folder=small_disk / "g1" / "local-0")
    failure = find_failure(death, {}).failure
    assert failure.kind is FailureKind.STORAGE
    assert "No space left on device" in failure.message


def test_a_folder_that_the_file_system_cannot_tell_of_is_not_full(tmp_path: Path) -> None:
    assert find_full_disk(tmp_path / ("x" * 1000) / "y") is None


def test_patience_ends_with_a_named_reason(small_disk: Path) -> None:
    fill(small_disk)
    assert find_full_disk(small_disk) is not None
    with pytest.raises(Unfit, match="No space left on device") as caught:
        await_fitness(small_disk, patience_s=0.6)
    assert caught.value.failure.kind is FailureKind.STORAGE


def test_a_fit_node_waits_for_nothing_and_keeps_no_litter(tmp_path: Path) -> None:
    assert await_fitness(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("meminfo", "fit"),
    [
        ("MemTotal: 1000000 kB\nMemAvailable: 10000 kB\n", True),
        ("MemTotal: 1000000 kB\nMemAvailable: 9999 kB\n", False),
        ("MemTotal: 1000000 kB\n", True),
        ("MemTotal: x kB\nMemAvailable: 1 kB", True),
        ("", True),
    ],
)
def test_want_of_memory(meminfo: str, fit: bool) -> None:
    assert (find_want_of_memory(meminfo) is None) == fit
