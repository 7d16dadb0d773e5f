"""A real service with a cluster of somebody else's torchx scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.jobs import ended, python_job, running, until
from tests.torchx_backend.worlds import PLUGIN


@contextmanager
def open_service(folder: Path, settings: str = "") -> Iterator[ThrowawayService]:
    queue = folder / "queue"
    queue.mkdir()
    config = folder / "orchestrator.toml"
    config.write_text(
        f'[clusters.farm]\nbackend = "torchx"\nscheduler = "queue_of_files"\ncfg = {{folder = "{queue}"}}\n'
        f'python = "{sys.executable}"\npoll_s = 0.3\nsettle_s = 1\nstop_timeout_s = 5\n{settings}'
    )
    path = ":".join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH"))))
    given = {"ORCHESTRATOR_CONFIG": str(config), "PYTHONPATH": path}
    with ThrowawayService(folder / "runs", given) as service:
        yield service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ThrowawayService]:
    with open_service(tmp_path) as running:
        yield running


def job(code: str, **fields: object) -> dict[str, object]:
    return python_job(code, cluster="farm", **fields)


def test_a_job_runs_on_the_plug_ins_scheduler_and_its_secrets_pass_through_no_app(
    service: ThrowawayService, client: Client, tmp_path: Path
) -> None:
    url = f"{service.url}/api/v1/secrets"
    httpx.post(url, json={"project": "default", "name": "KEY", "value": "hush-hush"}, timeout=60).raise_for_status()
    code = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['KEY'][:4])"
    spec = job(code, topology={"nodes": "2", "workers_per_node": 2})
    spec["run"] = {**spec["run"], "secrets": ["KEY"], "env": {"PRICE": "$5 ${app_id}"}}  # type: ignore[dict-item]
    planned = client.plan(spec)
    assert planned.native_kind == "torchx:queue_of_files"
    done = until(client, client.submit(spec).id, ended)
    assert done.state == "SUCCEEDED", done.reason
    log = client.logs(done.id)
    assert {f"rank {rank} of 4 hush" in log for rank in range(4)} == {True}
    apps = "".join(each.read_text() for each in (tmp_path / "queue").rglob("*") if each.is_file())
    assert "trainer.elastic.node" in apps
    assert "hush" not in apps


@pytest.mark.long
def test_a_restarted_service_finds_its_jobs_and_cancels_them(service: ThrowawayService, client: Client) -> None:
    first = until(client, client.submit(job("import time; time.sleep(600)")).id, running)
    service.kill()
    service.start()
    with Client(service.url) as again:
        found = until(again, first.id, running)
        assert found.attempts == 1
        again.cancel(first.id)
        assert until(again, first.id, ended).state == "CANCELLED"
    assert list(service.processes()) == []


@pytest.mark.long
def test_a_killed_agent_is_named_and_the_next_attempt_succeeds(service: ThrowawayService, client: Client) -> None:
    folder = service.root.parent
    code = f"import os, time; time.sleep(0 if os.path.exists({str(folder / 'go')!r}) else 600)"
    first = until(client, client.submit(job(code)).id, running)
    (folder / "go").touch()
    for process in service.processes():
        if process.is_agent:
            os.kill(process.pid, signal.SIGKILL)
    done = until(client, first.id, ended)
    assert (done.state, done.attempts) == ("SUCCEEDED", 2), "\n".join(e.sentence for e in client.events(done.id))


@pytest.mark.long
def test_doctor_says_what_is_weaker_and_tries_a_group(service: ThrowawayService) -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "doctor", "--cluster", "farm"]
    done = subprocess.run(command, env=service.environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torchx knows the scheduler queue_of_files, and accepts cfg" in done.stdout
    assert "cannot find an app whose id was lost" in done.stdout
    assert "two workers" in done.stdout
