"""Full file systems, by size or by quota: new snapshots are lost, committed ones are not."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trainer.harness import start_group
from trainer import snapshot
from trainer.contract import env


@pytest.mark.parametrize("kind", ["ext4", "btrfs quota"])
def test_a_full_file_system_costs_no_committed_snapshot(tmp_path, kind):
    """Such file systems allocate blocks late, and a quota has another errno."""
    message = os.strerror(errno.ENOSPC if kind == "ext4" else errno.EDQUOT)
    options = {"steps": 6, "snapshot_interval": 2, "snapshot_keep": 1}
    with mounted(tmp_path, kind) as disk:
        variables = {env.SNAPSHOT_DIR: str(disk)}
        with start_group(tmp_path, 1, variables=variables, **options) as group:
            assert group.wait() == [1], group.outputs()
        failed = group.events("snapshot.failed")
        assert {event["evidence"]["step"] for event in failed} >= {4, 6}
        assert all(message in event["sentence"] for event in failed)
        (only,) = snapshot.list_named(disk)
        assert snapshot.verify(disk / str(only)).step == 2
        (disk / "filler").unlink()
        with start_group(tmp_path, 1, generation=2, variables=variables, **options) as after:
            assert after.wait() == [0], after.outputs()
    assert after.events("restored")[0]["evidence"]["step"] == 2
    assert after.losses() == {step: group.losses()[step] for step in (3, 4, 5, 6)}


@contextmanager
def mounted(folder: Path, kind: str) -> Iterator[Path]:
    """Room for one snapshot of 11 MB, and for three once `filler` is gone. Skips if that cannot be made."""
    image, disk = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate((48 if kind == "ext4" else 256) * 2**20)
    disk.mkdir()
    made = (
        run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image)
        if kind == "ext4"
        else run("mkfs.btrfs", "-q", image)
    )
    if not (made and run("mount", "-o", "loop", image, disk)):
        pytest.skip(f"no {kind} on a loop device: it needs root, mkfs and a kernel that knows it")
    try:
        place = disk
        if kind != "ext4":
            place = disk / "volume"
            steps = (("quota", "enable", disk), ("subvolume", "create", place), ("qgroup", "limit", "48m", place))
            if not all(run("btrfs", *step) for step in steps):
                pytest.skip("this btrfs has no quotas")
        (place / "filler").write_bytes(os.urandom(28 * 2**20))
        os.sync()
        yield place
    finally:
        run("umount", "-l", disk)


def run(*command: object) -> bool:
    try:
        return (
            subprocess.run([str(part) for part in command], capture_output=True, timeout=300, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False
