"""Temporary folders of killed processes are removed, those of living ones are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import ROOT

OWNER = """
import os, time
from trainer.elastic.records.scratch import Scratch
scratch = Scratch()
(scratch.path / "half-written").write_text("x" * 100)
if os.fork():
    print(scratch.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that each have a folder and a child."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OWNER],
            env={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    try:
        yield started
    finally:
        for owner in started:
            if owner.poll() is None:
                os.killpg(owner.pid, signal.SIGKILL)
                owner.communicate(timeout=300)


def folder_of(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_the_next_owner_removes_only_folders_of_killed_processes(
    owners: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    living, killed = folder_of(owners[0]), folder_of(owners[1])
    os.killpg(owners[1].pid, signal.SIGKILL)
    owners[1].communicate(timeout=300)  # until its child has ended, too
    (tmp_path / ".elasticrun-scratch-a-link").symlink_to(living)
    (tmp_path / ".elasticrun-scratch-a-file").write_text("not a folder")
    (tmp_path / "elasticrun-results").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "from trainer.elastic.records.scratch import Scratch; Scratch().sweep()"],
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not killed.exists()
    assert (living / "half-written").exists()
    assert sorted(left.name for left in tmp_path.iterdir()) == sorted(
        [".elasticrun-scratch-a-file", ".elasticrun-scratch-a-link", "elasticrun-results", living.name]
    )


def test_a_folder_that_was_removed_before_it_was_locked_is_created_again(tmp_path: Path) -> None:
    text = """
import fcntl
from pathlib import Path
from trainer.elastic.records import scratch
swept = []
lock = fcntl.flock
def late(descriptor, how):
    if len(swept) == 1:
        swept.extend(Path.cwd().glob(".elasticrun-scratch-*"))
        swept[1].rmdir()
    lock(descriptor, how)
def later(path, flags, *more):
    if not swept and ".elasticrun-scratch-" in str(path):
        swept.append(Path(path))
        swept[0].rmdir()
    return opened(path, flags, *more)
opened = scratch.os.open
scratch.os.open, scratch.fcntl.flock = later, late
made = scratch.Scratch()
scratch.os.open = opened
assert len(swept) == 2 and made.path.exists() and made.path not in swept
made.sweep()
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
