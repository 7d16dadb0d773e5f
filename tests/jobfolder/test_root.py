"""Other users cannot read what the service writes to its run directory, unless somebody opened the directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.jobs import ended, python_job, until

_READS = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); print(open(sys.argv[1]).read())"


@pytest.fixture
def usual_mask() -> Iterator[None]:
    mask = os.umask(0o022)
    yield
    os.umask(mask)


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder that other users of the machine can enter, as homes and /srv are."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == tmp_path.owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def others_read(file: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", _READS, str(file)], capture_output=True, timeout=300, check=False)
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.usefixtures("usual_mask")
@pytest.mark.long
@pytest.mark.parametrize("opened", [False, True], ids=["fresh", "opened on purpose"])
def test_another_user_reads_no_log_in_a_root_that_serve_made(reachable: Path, opened: bool) -> None:
    root = reachable / "fresh" / "root"
    if opened:
        root.mkdir(parents=True, mode=0o755)
    with ThrowawayService(root, log_folder=reachable / "printed") as service, Client(service.url) as client:
        job = until(client, client.submit(python_job("print('unmasked words')")).id, ended)
        (log,) = (root / job.id).glob("attempts/1/replica-0/*/g*/local-0/log")
        assert others_read(log) is opened
        assert root.stat().st_mode & 0o777 == (0o755 if opened else 0o700)
