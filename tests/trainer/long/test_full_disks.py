"""Full file systems, by size or by quota: committed snapshots stay, and the last one waits for space."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trainer.harness import start_group, wait_for
from trainer import snapshot
from trainer.contract import env


@pytest.mark.parametrize("kind", ["ext4", "btrfs quota"])
def test_a_full_file_system_costs_neither_a_committed_snapshot_nor_the_last_one(tmp_path, kind):
    """Such file systems allocate blocks late, and a quota has another errno."""
    message = os.strerror(errno.ENOSPC if kind == "ext4" else errno.EDQUOT)
    options = {"steps": 6, "snapshot_interval": 2, "snapshot_keep": 1}
    with mounted(tmp_path, kind) as disk:
        variables = {env.SNAPSHOT_DIR: str(disk)}
        with start_group(tmp_path, 1, variables=variables, **options) as group:
            wait_for(lambda: len(group.events("snapshot.failed")) == 2, "two snapshots to fail")
            failed = group.events("snapshot.failed")
            assert [event["evidence"]["step"] for event in failed] == [4, 6]
            assert all(message in event["sentence"] for event in failed)
            wait_for(lambda: len(snapshot.list_named(disk)) == 1, "half a snapshot to be removed")
            (only,) = snapshot.list_committed(disk)
            assert snapshot.verify(disk / str(only)).step == 2
            (disk / "filler").unlink()
            assert group.wait() == [0], group.outputs()
        (only,) = snapshot.list_named(disk)
        assert snapshot.verify(disk / str(only)).step == 6


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
