"""Snapshots that are written while training continues."""

import signal
from pathlib import Path

import pytest

from tests.trainer.harness import Group, start_group
from trainer import snapshot
from trainer.contract import layout

SLOW = (str(Path(__file__).parents[1] / "slow_saving_entry.py"),)
EVERY, STEPS = 5, 12
WAITS = "WAITS_FOR_TRAINING"
PAUSES = {"SECONDS_BEFORE_COPY": "0.2", "SECONDS_PER_TENSOR": "0.01"}


def shards(group: Group, step: int) -> dict[str, str]:
    """The checksum of each shard of a committed snapshot. `.metadata` is left out: torch writes a random id into it."""
    directory = layout.snapshots_dir(group.job_dir) / f"step-{step:08d}-a1-g1"
    files = snapshot.verify(directory).files.items()
    return {name: entry.checksum for name, entry in files if name != ".metadata"}


def train(job_dir: Path, strategy: str, **options: object) -> Group:
    job_dir.mkdir()
    with start_group(
        job_dir, 2, strategy=strategy, dropout=0.1, steps=STEPS, snapshot_interval=EVERY, **options
    ) as group:
        assert group.wait() == [0, 0], group.outputs()
    return group


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_async_snapshot_equals_a_synchronous_one_bit_for_bit(tmp_path, strategy):
    waiting = train(tmp_path / "sync", strategy, snapshot_mode="sync")
    beside = train(tmp_path / "async", strategy, snapshot_mode="async", entry=SLOW, variables={WAITS: "write"})
    torn = train(tmp_path / "torn", strategy, entry=SLOW, variables={WAITS: "copy", "NO_WAIT": "1"})
    committed = {event["evidence"]["step"]: event["at"] for event in beside.events("snapshot.committed")}
    assert any(line["at"] < committed[EVERY] for line in beside.steps() if line["step"] > EVERY + 1), (
        "training continued"
    )
    for step in (EVERY, 2 * EVERY, STEPS):
        assert shards(beside, step) == shards(waiting, step)
    assert beside.losses() == waiting.losses()
    # Without the wait before the update the same comparison fails, although each snapshot is verified as good.
    for step in (EVERY, 2 * EVERY):
        assert all(shards(torn, step)[name] != checksum for name, checksum in shards(waiting, step).items())
    assert shards(torn, STEPS) == shards(waiting, STEPS)


def test_an_error_that_ends_the_run_waits_for_the_snapshot_in_flight(tmp_path):
    options = {"learning_rate": 1e38, "warmup_steps": 0, "grad_clip": 0, "snapshot_interval": 1}
    with start_group(tmp_path, 2, entry=SLOW, variables=PAUSES, **options) as group:
        assert group.wait() == [1, 1]
        assert "NonFiniteLoss" in group.outputs()
    assert group.committed() == [1]


@pytest.mark.smoke
def test_a_stop_waits_for_the_snapshot_in_flight_and_takes_its_own(tmp_path):
    with start_group(tmp_path, 2, entry=SLOW, variables=PAUSES, steps=100_000, snapshot_interval=EVERY) as group:
        group.wait_for_step(EVERY)
        group.processes[1].send_signal(signal.SIGTERM)
        assert group.wait() == [143, 143], group.outputs()
        assert {EVERY, max(group.losses())} <= set(group.committed())


def test_a_stop_does_not_wait_until_old_snapshots_are_verified(tmp_path):
    options = {"steps": 100_000, "snapshot_interval": 200, "snapshot_keep": 1}
    with start_group(tmp_path, 2, entry=SLOW, variables={"ENDLESS_READS": "1"}, **options) as group:
        group.wait_for_commit(400)  # retention now verifies it, before it would delete the first one
        group.processes[1].send_signal(signal.SIGTERM)
        assert group.wait() == [143, 143], group.outputs()
        assert group.committed() == [200, 400, max(group.losses())]


def test_a_broken_group_does_not_wait_for_its_snapshot(tmp_path):
    variables = {"SECONDS_PER_TENSOR": "10"}
    with start_group(tmp_path, 2, entry=SLOW, variables=variables, steps=100_000, snapshot_interval=2) as group:
        group.wait_for_step(3)
        group.processes[1].send_signal(signal.SIGKILL)
        assert group.wait() == [1, -signal.SIGKILL]
        assert "Abandoned" not in group.outputs()
    assert group.committed() == []
    with start_group(tmp_path, 1, generation=2, steps=3) as after:
        assert after.wait() == [0], after.outputs()
    assert after.committed() == [3]
    assert len(list(layout.snapshots_dir(tmp_path).iterdir())) == 1, "the unfinished snapshot is swept"
