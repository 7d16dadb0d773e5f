"""If a group goes silent, its journal shows which rank stopped first."""

import signal
import time
from pathlib import Path

import pytest

from tests.trainer.harness import Group, read_lines, start_group, wait_for
from trainer.contract import layout
from trainer.contract.env import parse_place
from trainer.contract.progress import Phase
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import AFTER_S, Waits

STUCK = (str(Path(__file__).parents[1] / "stuck_entry.py"),)


def latest(group: Group) -> dict[int, dict]:
    return {line["rank"]: line for line in read_lines(group.replica_dir / layout.PROGRESS)}


def phases(group: Group, rank: int) -> list[str]:
    return [line["phase"] for line in read_lines(group.replica_dir / layout.PROGRESS) if line["rank"] == rank]


def wait_until_waiting(group: Group, ranks: set[int]) -> dict[int, dict]:
    wait_for(
        lambda: {rank for rank, line in latest(group).items() if line["phase"] == "waiting"} == ranks,
        f"ranks {ranks} to wait",
    )
    time.sleep(2 * AFTER_S)  # ranks that report more have done so by now
    return latest(group)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_healthy_ranks_report_that_they_wait_and_the_frozen_one_does_not(strategy, tmp_path):
    with start_group(tmp_path, 3, strategy=strategy, steps=100_000, snapshot_interval=100_000) as group:
        group.wait_for_step(3)
        group.processes[1].send_signal(signal.SIGSTOP)
        lines = wait_until_waiting(group, {0, 2})
        assert lines[1]["phase"] == "step"
        assert lines[1]["step"] <= min(lines[0]["step"], lines[2]["step"])
        # Each reports it once. A busy machine may have made it wait before.
        assert [phases(group, rank)[-2:].count("waiting") for rank in range(3)] == [1, 0, 1]
        group.processes[1].send_signal(signal.SIGCONT)
        group.wait_for_step(lines[0]["step"] + 2)
        assert {line["phase"] for line in latest(group).values()} == {"step"}


def test_a_rank_that_hangs_outside_a_collective_does_not_report_waiting(tmp_path):
    with start_group(tmp_path, 2, entry=STUCK, steps=100_000, snapshot_interval=100_000) as group:
        lines = wait_until_waiting(group, {0})
        assert lines[1]["phase"] == "step"
        assert lines[0]["step"] == lines[1]["step"] > 0


def test_the_wait_for_a_rank_that_never_arrives_is_reported(tmp_path):
    with start_group(tmp_path, 2, steps=1) as group:
        group.processes[1].send_signal(signal.SIGSTOP)
        lines = wait_until_waiting(group, {0})
        assert set(lines) == {0}
        group.processes[1].send_signal(signal.SIGCONT)
        assert group.wait() == [0, 0], group.outputs()


def test_every_rank_reports_each_change_of_phase(tmp_path):
    with start_group(tmp_path, 2, steps=2, snapshot_interval=1) as group:
        assert group.wait() == [0, 0], group.outputs()
    shared = ["start", "restore", "step", "step", "snapshot", "step", "step", "snapshot", "step", "done"]
    for rank, first in enumerate((["data", "restore"], ["data"])):  # rank 0 verifies before the group forms
        assert [phase for phase in phases(group, rank) if phase != "waiting"] == [*first, *shared]


def test_a_wait_is_reported_once_and_its_end_repeats_the_phase(tmp_path, monkeypatch):
    heartbeat = Heartbeat(parse_place({"ORCHESTRATOR_REPLICA_DIR": str(tmp_path)}), total_steps=9)
    heartbeat.beat(Phase.STEP, 7)
    waits, clock = Waits(heartbeat), iter([0.0, 1.9, 2.0, 9.0, 10.0, 20.0])
    monkeypatch.setattr("trainer.worker.waits.time.monotonic", lambda: next(clock))
    waits.begin()
    waits.look()
    waits.look()
    waits.look()
    waits.end()
    waits.expect(step_s=5.0)
    waits.begin()
    waits.look()
    waits.end()
    reported = [(line["phase"], line["step"]) for line in read_lines(tmp_path / layout.PROGRESS)]
    assert reported == [("step", 7), ("waiting", 7), ("step", 7)]
