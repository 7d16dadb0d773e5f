"""Snapshots that the service asks for."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.trainer.harness import Group, start_group
from trainer.contract import layout
from trainer.wishes import SnapshotWishes


def wish(path: Path, **document: object) -> None:
    temporary = path.with_name("temporary")
    temporary.write_text(json.dumps({"state": "run", **document}))
    temporary.replace(path)


def wait_for_snapshots(group: Group, count: int, timeout_s: float = 60) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while len(steps := [event["evidence"]["step"] for event in group.events("snapshot.committed")]) < count:
        assert time.monotonic() < deadline, steps
        time.sleep(0.05)
    return steps


def test_a_running_group_takes_each_snapshot_that_was_asked_for_once(tmp_path):
    path = layout.attempt_dir(tmp_path, 1) / layout.DESIRED
    options = {"steps": 100_000, "snapshot_interval": 100_000}
    with start_group(tmp_path, 2, **options) as group:
        group.wait_for_step(3)
        wish(path, snapshot=1, number=2)
        [first] = wait_for_snapshots(group, 1)
        wish(path, snapshot=1, number=3)  # another wish, not for a snapshot
        wish(path, snapshot=9, number=1)  # older news
        group.wait_for_step(first + 150)
        assert wait_for_snapshots(group, 1) == [first]
        wish(path, snapshot=2, number=4)
        wait_for_snapshots(group, 2)
        group.processes[0].send_signal(signal.SIGTERM)
        assert group.wait(60) == [143, 143], group.outputs()
    with start_group(tmp_path, 2, generation=2, **options) as again:
        again.wait_for_step(max(group.losses()) + 50)
        assert again.events("snapshot.committed") == [], "a wish that was answered before the restart"


@pytest.fixture
def path(tmp_path):
    wish(tmp_path / "desired.json", snapshot=1, number=1)
    return tmp_path / "desired.json"


def test_the_file_is_looked_at_twice_a_second_at_most(path):
    wishes = SnapshotWishes(path, answered=1)
    assert not wishes.is_due(now=0.0)
    wish(path, snapshot=2, number=2)
    assert not wishes.is_due(now=0.4)
    assert wishes.is_due(now=0.5)
    assert wishes.answer() == 2
    assert not wishes.is_due(now=9.0)


def test_a_wish_from_before_the_start_is_due_and_one_that_was_answered_is_not(path):
    assert SnapshotWishes(path, answered=0).is_due(now=0.0)
    assert not SnapshotWishes(path, answered=1).is_due(now=0.0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"snapshot": "7"}', '{"snapshot": -1}'])
def test_what_cannot_be_read_is_no_wish(content, path):
    path.write_text(content)
    os.utime(path, ns=(1, 1))
    assert not SnapshotWishes(path, answered=0).is_due(now=0.0)


def test_outside_a_job_nobody_wishes():
    assert not SnapshotWishes(None, answered=0).is_due(now=0.0)
