"""The database is restored from a copy while jobs keep running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.databases import scratch_database
from deploy.dev.killing import kill_at_once
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.store.upgrade import upgrade
from tests.conftest import quick_service
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, until

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 240.0


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThrowawayService]:
    if request.param == "sqlite":
        with quick_service(tmp_path / "runs") as running_service:
            yield running_service
        return
    with scratch_database(request.getfixturevalue("postgres")) as url:
        upgrade(url)
        with quick_service(tmp_path / "runs", ORCHESTRATOR_DATABASE_URL=url) as running_service:
            yield running_service


def database(service: ThrowawayService, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "db", *arguments],
        env=service.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def counting(folder: Path, name: str) -> dict[str, object]:
    """A job that writes a file for each start of its worker, and runs until the file `go` exists."""
    code = (
        "import os, pathlib, time, uuid\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        f"(folder / f'{name}-{{os.getpid()}}').touch()\n"
        f"while not (folder / 'go').exists(): time.sleep(0.1)"
    )
    return python_job(code)


def starts(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}-*")))


def await_starts(folder: Path, name: str, count: int) -> None:
    wait_for(lambda: starts(folder, name) >= count, f"start {count} of {name}", PATIENCE_S)


def test_running_jobs_are_adopted_after_a_restore(service: ThrowawayService, tmp_path: Path) -> None:
    copy, folder = tmp_path / "copy", tmp_path / "starts"
    folder.mkdir()
    with Client(service.url) as client:
        steady = client.submit(counting(folder, "steady"))
        moved = client.submit(counting(folder, "moved"))
        queued = client.submit({**counting(folder, "queued"), "after": [steady.id]})
        for name in ("steady", "moved"):
            await_starts(folder, name, 1)
        until(client, steady.id, running)
        until(client, moved.id, running)
        database(service, "backup", str(copy))

        # After the backup, one job starts its second attempt, and one is new.
        kill_at_once(process.pid for process in service.processes() if process.job_id == moved.id)
        await_starts(folder, "moved", 2)
        late = client.submit(counting(folder, "late"))
        await_starts(folder, "late", 1)
        until(client, moved.id, lambda job: job.attempt == 2 and running(job))
    service.stop()
    database(service, "restore", str(copy), "--replace")
    database(service, "upgrade")
    database(service, "check")
    service.start()
    with Client(service.url) as client:
        assert {job.id for job in client.jobs()} == {steady.id, moved.id, queued.id}
        until(client, steady.id, running)
        assert (client.job(steady.id).attempts, starts(folder, "steady")) == (1, 1)
        until(client, moved.id, lambda job: job.attempt == 2 and running(job), timeout_s=PATIENCE_S)
        processes = [one for one in service.processes() if one.job_id == moved.id and one.local_rank is not None]
        assert len(processes) == 1, "its second attempt runs once"
        (folder / "go").touch()
        for job in (steady, moved, queued):
            assert until(client, job.id, ended, timeout_s=PATIENCE_S).state == "SUCCEEDED"
    assert (starts(folder, "steady"), starts(folder, "queued")) == (1, 1)
    assert late.id not in {one.job_id for one in service.processes()}
