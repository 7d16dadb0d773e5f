"""A service that requires tokens: the command line, a real job with a secret, its agent's reports."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client, RequestRefused
from tests.jobs import ended, python_job, until
from tests.unit.test_process import make_certificate

TOKEN = "first-admin-0123456789abcdef"
VALUE = "hunter2-hunter2-hunter2"
PRINTS = (
    "import hashlib, os; print('has', os.environ['KEY']); print(hashlib.sha256(os.environ['KEY'].encode()).hexdigest())"
)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ThrowawayService]:
    with ThrowawayService(tmp_path / "root", {"ORCHESTRATOR_TOKEN": TOKEN, "ORCHESTRATOR_LOCAL_SLOTS": "4"}) as service:
        yield service


def run(service: ThrowawayService, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    return subprocess.run(
        command, env={**service.environment(), **more}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.long
def test_a_token_gives_access_until_it_is_revoked(guarded: ThrowawayService) -> None:
    assert httpx.get(f"{guarded.url}/api/v1/jobs").status_code == 401
    refused = run(guarded, "ls", ORCHESTRATOR_TOKEN="x" * 16)
    assert (refused.returncode, refused.stdout) == (2, "")
    made = run(guarded, "token", "create", "alice", "--grant", "default=submitter", "--expires", "1d")
    assert made.returncode == 0, made.stderr
    theirs = made.stdout.strip()
    assert theirs.startswith("orc_")
    assert run(guarded, "ls", "--json", ORCHESTRATOR_TOKEN=theirs).returncode == 0
    listed = json.loads(run(guarded, "token", "ls", "--json").stdout)["items"]
    assert [(one["name"], one["created_by"]) for one in listed] == [("alice", "first admin")]
    assert theirs not in run(guarded, "token", "ls").stdout
    assert run(guarded, "token", "revoke", listed[0]["id"]).returncode == 0
    assert run(guarded, "ls", ORCHESTRATOR_TOKEN=theirs).returncode == 2
    assert theirs not in guarded.printed()
    assert TOKEN not in guarded.printed()


def test_only_the_job_sees_its_secret(guarded: ThrowawayService) -> None:
    admin = {"Authorization": f"Bearer {TOKEN}"}
    body = {"project": "default", "name": "KEY", "value": VALUE}
    assert httpx.post(f"{guarded.url}/api/v1/secrets", json=body, headers=admin).status_code == 201
    spec = python_job(PRINTS)
    spec["run"]["secrets"] = ["KEY"]
    with Client(guarded.url, TOKEN) as client:
        job = until(client, client.submit(spec).id, ended)
        assert job.state == "SUCCEEDED", job.reason
        log = client.logs(job.id)
        assert "has ********" in log
        assert VALUE not in log
        events = [event.model_dump_json() for event in client.events(job.id)]
        assert VALUE not in "".join(events)
    found = [path for path in guarded.root.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert [path.name for path in found] == ["log"], "only the job's own output contains it"
    assert TOKEN not in log


@pytest.mark.long
def test_an_attempt_gets_a_worker_token(tmp_path: Path) -> None:
    settings = {"ORCHESTRATOR_TOKEN": TOKEN, "ORCHESTRATOR_ADVERTISE_URL": "http://127.0.0.1:1"}
    with ThrowawayService(tmp_path / "root", settings) as service, Client(service.url, TOKEN) as client:
        printing = python_job("import os; print(os.environ['ORCHESTRATOR_REPORT_TOKEN'])")
        job = until(client, client.submit(printing).id, ended)
        token = client.logs(job.id).strip()
        assert token.startswith("orw_")
        headers = {"Authorization": f"Bearer {token}"}
        report = {"job_id": job.id, "attempt": 1, "replica": 0, "incarnation": 1}
        assert httpx.post(f"{service.url}/api/v1/reports", json=report, headers=headers).status_code == 200
        assert httpx.post(f"{service.url}/api/v1/reports", json=report).status_code == 401
        assert httpx.get(f"{service.url}/api/v1/jobs", headers=headers).status_code == 401
        with Client(service.url, "wrong-token-of-16") as stranger, pytest.raises(RequestRefused):
            stranger.job(job.id)


def test_a_service_beyond_loopback_does_not_start_without_a_token(tmp_path: Path) -> None:
    environment = {"ORCHESTRATOR_HOST": "0.0.0.0"}
    service = ThrowawayService(tmp_path / "root", environment)
    done = run(service, "serve")
    assert done.returncode == 2
    assert "ORCHESTRATOR_TOKEN" in done.stderr
    with ThrowawayService(tmp_path / "root", {**environment, "ORCHESTRATOR_TOKEN": TOKEN}, name="guarded") as guarded:
        url = guarded.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/api/v1/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "train.example"}
        assert httpx.get(f"{url}/api/v1/jobs", headers=headers).status_code == 200


def test_a_service_with_a_certificate_accepts_only_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    settings = {"ORCHESTRATOR_TLS_CERT": str(cert), "ORCHESTRATOR_TLS_KEY": str(key), "ORCHESTRATOR_HOST": "localhost"}
    trust = ssl.create_default_context(cafile=str(cert))
    with ThrowawayService(tmp_path / "root", settings) as service:
        assert service.url.startswith("https://localhost:")
        assert httpx.get(f"{service.url}/healthz", verify=trust).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(service.url.replace("https:", "http:") + "/healthz")
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(f"{service.url}/healthz", verify=ssl.create_default_context())
