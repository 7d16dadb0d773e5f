"""A node that cannot run workers for a while: the restart waits for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import STEADY, Job, wait_for
from trainer.contract.failure import FailureKind
from trainer.elastic.health.fitness import NodeUnfit, await_fitness, find_full_disk, find_memory_shortage
from trainer.elastic.health.postmortem import Death, find_failure


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
        agent = job.policy(max_restarts=1).start(STEADY, str(tmp_path / "finish"))
        pid = agent.pids(1)[0]
        wait_for(lambda: agent.progress(1), "first step")
        with (agent.folder.parent / "agent.log").open("a") as log:
            log.write("so that the log has a page before the disk is full\n")
        ballast = fill(small_disk)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "waiting: " in agent.printed(), "message that the agent waits")
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


def test_a_failure_without_output_on_a_full_disk_is_a_storage_failure(small_disk: Path) -> None:
    fill(small_disk)
    death = Death(rank=0, local_rank=0, exit_code=1, folder=small_disk / "g1" / "local-0")
    failure = find_failure(death, {}).failure
    assert failure.kind is FailureKind.STORAGE
    assert "No space left on device" in failure.message


def test_a_folder_that_cannot_be_read_does_not_count_as_full(tmp_path: Path) -> None:
    assert find_full_disk(tmp_path / ("x" * 1000) / "y") is None


def test_a_node_that_stays_unfit_raises_unfit_with_the_reason(small_disk: Path) -> None:
    fill(small_disk)
    assert find_full_disk(small_disk) is not None
    with pytest.raises(NodeUnfit, match="No space left on device") as caught:
        await_fitness(small_disk, patience_s=0.6)
    assert caught.value.failure.kind is FailureKind.STORAGE


def test_a_fit_node_does_not_wait_and_leaves_no_file(tmp_path: Path) -> None:
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
def test_a_memory_shortage_is_less_than_one_percent(meminfo: str, fit: bool) -> None:
    assert (find_memory_shortage(meminfo) is None) == fit
