"""A job that runs as the service's user may remove permissions, lease files or fill them."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import rundir
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.jobfolder.removal import remove_folder
from orchestrator.upkeep.housekeeping import discard

NOBODY = 65534


def _as_nobody(act: Callable[[Path], object], root: Path) -> None:
    """Run in a process of another user, because root needs no permissions. Prints the error, if any."""
    if os.geteuid() != 0:
        act(root)
        return
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chown(root, NOBODY, NOBODY)
            here = os.open(root, os.O_RDONLY)
            os.fchdir(here)  # only root may be able to reach it by its path
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act(Path())
            status = 0
        except BaseException as error:  # the edge of the process
            print(repr(error), flush=True)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _discard_closed(root: Path) -> None:
    Path(root, "job").mkdir()
    Path(root, "job").chmod(0)
    with Folder.of(root) as folder:
        discard(folder, Path("job"))
    assert not Path(root, "job").exists()


def _remove_closed(root: Path) -> None:
    Path(root, "job/a/b/c/d").mkdir(parents=True)
    for name in ("job/a/b/c", "job/a/b", "job/a", "job"):
        Path(root, name).chmod(0)
    assert remove_folder(root, "job", lambda: True)
    assert not Path(root, "job").exists()


def _append_closed(root: Path) -> None:
    Path(root, "job").mkdir()
    for name in ("log", "note"):
        Path(root, "job", name).touch(mode=0)
    with JobFolder(root, "job").make() as folder:
        folder.append(Path("log")).close()
        folder.touch(Path("note"))


@pytest.mark.parametrize("act", [_discard_closed, _remove_closed, _append_closed])
def test_entries_without_write_permission_are_removed_and_written(
    tmp_path: Path, act: Callable[[Path], object]
) -> None:
    _as_nobody(act, tmp_path)


def test_a_lease_on_a_file_does_not_block_a_reader(tmp_path: Path) -> None:
    """A blocking open would wait 45 seconds for the holder of the lease, then succeed."""
    Path(tmp_path, "job").mkdir()
    leased = Path(tmp_path, "job", "exit.json")
    leased.write_text("{}")
    with _leased(leased), JobFolder(tmp_path, "job").open() as folder, pytest.raises(BlockingIOError):
        folder.read(Path("exit.json"), limit=100)


def test_invalid_exit_records_are_read_quickly(tmp_path: Path) -> None:
    """256 such records once took 24 seconds of each pass."""
    for replica in range(8):
        for life in range(32):
            folder = tmp_path / f"job/attempts/1/replica-{replica}/{life}"
            folder.mkdir(parents=True)
            (folder / "exit.json").write_text("[" + "[]," * 87_000 + "[]]")
    began = time.thread_time()
    found = list(rundir.read_news(JobFolder(tmp_path, "job"), AttemptKey("job", 1), 8, {}))
    assert len(found) == 8 * rundir.MAX_INCARNATIONS
    assert time.thread_time() - began < 2


@contextmanager
def _leased(path: Path) -> Iterator[None]:
    heard, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            fcntl.fcntl(os.open(path, os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(say, b"y")
        except OSError:
            os.write(say, b"n")
        time.sleep(60)
        os._exit(0)
    try:
        if os.read(heard, 1) != b"y":
            pytest.skip("this file system has no leases")
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(heard)
        os.close(say)
