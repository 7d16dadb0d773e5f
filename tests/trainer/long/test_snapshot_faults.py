"""Faults of snapshots: a damaged one is never loaded, and none is lost silently."""

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.trainer.harness import Group, make_snapshot, start_group, wait_for
from trainer import snapshot
from trainer.contract import env
from trainer.contract.fence import Term
from trainer.contract.layout import MANIFEST
from trainer.contract.manifest import SnapshotName
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import lineage
from trainer.snapshot.retention import Retention

OLD, NEW = SnapshotName(10, Term(1, 1)), SnapshotName(20, Term(1, 1))
SHARDS = ("__0_0.distcp", "__1_0.distcp")


def begin(job_dir: Path, **variables: str):
    """Begin the next generation. Returns what it restores, and its events' sentences."""
    reported: list[str] = []
    place = env.parse_place({env.JOB_DIR: str(job_dir), env.GENERATION: "2", **variables})
    fence = lineage.fence_of(place)
    beginning = lineage.begin_term(
        place, job_dir / "snapshots", fence, lambda _, sentence, __: reported.append(sentence)
    )
    return beginning.restore, reported


def test_a_snapshot_of_another_job_is_quarantined(tmp_path):
    """The snapshot's directory was copied here, so every checksum matches."""
    make_snapshot(tmp_path / "snapshots", OLD)
    foreign = make_snapshot(tmp_path / "snapshots", NEW)
    document = json.loads((foreign / MANIFEST).read_text())
    (foreign / MANIFEST).write_text(json.dumps({**document, "details": {"job": "gpt-2"}}))
    restore, (reported,) = begin(tmp_path, **{env.JOB_ID: "gpt-1"})
    assert restore.manifest.step == OLD.step
    assert "belongs to job gpt-2" in reported


def test_every_single_bit_flip_in_a_shard_is_caught(tmp_path):
    directory = make_snapshot(tmp_path, NEW)
    shard = directory / SHARDS[1]
    whole = shard.read_bytes()
    caught = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        shard.write_bytes(flipped)
        with pytest.raises(DamagedSnapshot, match="checksum differs"):
            snapshot.verify(directory)
        caught += 1
    assert caught == 8 * len(whole)
    shard.write_bytes(whole)
    assert snapshot.verify(directory).step == NEW.step


def retain(snapshots: Path, keep: int) -> tuple[list[str], list[int]]:
    """Delete old snapshots. Returns the kinds of the events, and the steps that are left."""
    reported: list[str] = []
    Retention(snapshots, lineage.Fence(None), lambda kind, *_: reported.append(kind.value), keep=keep).delete_old()
    return reported, sorted(name.step for name in snapshot.list_committed(snapshots))


def test_only_good_snapshots_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        make_snapshot(tmp_path, SnapshotName(step, Term(1, 1)))
    (tmp_path / "step-00000040-a1-g1" / SHARDS[0]).write_bytes(b"")
    assert retain(tmp_path, 2) == (["snapshot.quarantined", "snapshot.deleted"], [20, 30])
    for step in (20, 30):
        (tmp_path / f"step-{step:08d}-a1-g1" / SHARDS[0]).unlink()
    make_snapshot(tmp_path, OLD)
    assert retain(tmp_path, 1) == (["snapshot.quarantined", "snapshot.quarantined"], [10]), "the last good one stays"


def test_a_snapshot_that_cannot_be_deleted_is_tried_again_next_time(tmp_path, monkeypatch):
    for name in (OLD, NEW):
        make_snapshot(tmp_path, name)

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "remove", refuse)
        assert retain(tmp_path, 1) == ([], [10, 20])
    assert retain(tmp_path, 1) == (["snapshot.deleted"], [20])


def test_two_writers_of_one_step_do_not_disturb_each_other(tmp_path):
    """For example two runs outside a job that began in one folder at the same time."""
    other = tmp_path / "snapshots/step-00000002-a1-g1"
    other.mkdir(parents=True)
    (other / "__0_0.distcp").write_bytes(b"of somebody else")
    with start_group(tmp_path, 2, steps=4, snapshot_interval=2) as group:
        assert group.wait() == [0, 0], group.outputs()
    (failed,) = group.events("snapshot.failed")
    assert failed["sentence"] == f"snapshot of step 2 failed, training continues: another process writes {other}"
    assert [path.name for path in other.iterdir()] == ["__0_0.distcp"]
    assert group.committed() == [4]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_folder_that_becomes_read_only_costs_snapshots_and_not_the_run(tmp_path, small_disk, mode):
    options = {"steps": 40, "snapshot_interval": 10, "snapshot_keep": 1, "snapshot_mode": mode}
    with start_group(tmp_path, 1, variables={env.SNAPSHOT_DIR: str(small_disk)}, **options) as group:
        group.wait_for_step(11)
        group.wait_for_commit(10)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        wait_for(lambda: 40 in steps_of_failed_snapshots(group), "the last snapshot to fail")
        group.processes[0].send_signal(signal.SIGTERM)  # it would try for an hour
        assert group.wait() == [1], group.outputs()
        output = group.outputs()
    assert max(group.losses()) == 40, output
    assert all("Read-only file system" in event["sentence"] for event in group.events("snapshot.failed"))
    assert set(steps_of_failed_snapshots(group)) >= {30, 40}
    assert "SnapshotError: training ended at step 40, and its last snapshot could not be written" in output
    with start_group(tmp_path, 1, generation=2, variables={env.SNAPSHOT_DIR: str(small_disk)}) as after:
        assert after.wait() == [1]
        assert f"snapshots cannot be written to {small_disk}: Read-only file system" in after.outputs()


def steps_of_failed_snapshots(group: Group) -> list[int]:
    return [event["evidence"]["step"] for event in group.events("snapshot.failed")]


def test_a_shard_that_cannot_be_read_now_is_not_damaged(tmp_path):
    make_snapshot(tmp_path / "snapshots", OLD)
    unreadable = make_snapshot(tmp_path / "snapshots", NEW)
    (unreadable / SHARDS[0]).unlink()
    (unreadable / SHARDS[0]).mkdir()
    with pytest.raises(SnapshotError, match="cannot be read: Is a directory"):
        begin(tmp_path)
    assert unreadable.is_dir()
    shutil.rmtree(unreadable)
    assert begin(tmp_path)[0].manifest.step == OLD.step
