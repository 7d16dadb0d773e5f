"""A problem of one job does not affect others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.conftest import quick_service
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, until

FOREVER = "import time; time.sleep(600)"


def life_of(service: ThrowawayService, job_id: str) -> Path:
    return service.root / job_id / "attempts/1/replica-0/1"


def test_an_unreadable_run_directory_does_not_affect_other_jobs(service: ThrowawayService, client: Client) -> None:
    sick = until(client, client.submit(python_job(FOREVER)).id, running)
    folder = life_of(service, sick.id).parents[1]
    shutil.move(folder, folder.with_name("away"))
    folder.symlink_to(folder.name)  # a loop, which cannot be read
    healthy = until(client, client.submit(python_job("pass")).id, ended)
    assert healthy.state == "SUCCEEDED"
    assert client.job(sick.id).state == "RUNNING", "an unreadable folder is no evidence"
    folder.unlink()
    shutil.move(folder.with_name("away"), folder)
    client.cancel(sick.id)
    assert until(client, sick.id, ended).state == "CANCELLED"


def test_a_report_with_invalid_offsets_is_refused(service: ThrowawayService, client: Client) -> None:
    job = until(client, client.submit(python_job("import time; time.sleep(3)")).id, running)
    wild = {"job_id": job.id, "attempt": 1, "replica": 0, "incarnation": 1, "progress_to": 2**62}
    answer = httpx.post(f"{service.url}/api/v1/reports", json=wild)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/progress"
    assert until(client, job.id, ended).state == "SUCCEEDED"


def test_a_job_without_a_free_port_waits_with_the_reason(tmp_path: Path) -> None:
    ports = "[29901, 29901]"
    with quick_service(tmp_path, ORCHESTRATOR_RENDEZVOUS_PORTS=ports) as service, Client(service.url) as client:
        first = client.submit(python_job("import time; time.sleep(3)"))
        second = client.submit(python_job("pass"))
        waiting = until(client, second.id, lambda job: "ports" in job.reason)
        assert waiting.state == "QUEUED"
        assert until(client, first.id, ended).state == "SUCCEEDED"
        assert until(client, second.id, ended).state == "SUCCEEDED"


def test_a_child_process_of_a_finished_worker_is_ended(service: ThrowawayService, client: Client) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)"
    job = until(client, client.submit(python_job(code)).id, ended)
    assert job.state == "SUCCEEDED"
    assert list(service.processes()) == []


def test_a_job_that_finishes_while_a_retry_is_requested_still_ends(service: ThrowawayService, client: Client) -> None:
    job = until(client, client.submit(python_job("import time; time.sleep(2)")).id, running)
    os.kill(service.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not list(service.processes()), "end of the job's processes")
        retry = [sys.executable, "-m", "orchestrator.cli", "retry", job.id]
        asking = subprocess.Popen(retry, env={**os.environ, "ORCHESTRATOR_URL": service.url})
        time.sleep(1)
    finally:
        os.kill(service.pid, signal.SIGCONT)
    assert asking.wait(timeout=300) == 0
    assert until(client, job.id, ended).state == "SUCCEEDED"


def test_a_service_with_a_closed_log_pipe_keeps_running(tmp_path: Path) -> None:
    service = ThrowawayService(tmp_path, {"ORCHESTRATOR_POLL_S": "0.1"})
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "serve"],
        env=service.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writer,
        start_new_session=True,
    )
    os.close(writer)
    os.close(reader)
    try:
        announced = tmp_path / "service.json"
        wait_for(announced.exists, "announcement of the service")
        with Client(json.loads(announced.read_text())["url"]) as client:
            assert until(client, client.submit(python_job("pass")).id, ended).state == "SUCCEEDED"
            assert until(client, client.submit(python_job("pass")).id, ended).state == "SUCCEEDED"
    finally:
        process.terminate()
        process.wait(timeout=300)
        service.end()
