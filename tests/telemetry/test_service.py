"""A real service with a real job: its numbers, its trace and its log tell the same story."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.jobs import ended, python_job, until
from tests.telemetry.collector import collecting
from tests.telemetry.scrape import read

STOPS = "the service stops; jobs continue"


def test_a_service_that_stops_says_that_jobs_continue(tmp_path: Path) -> None:
    """In words on a terminal, as JSON elsewhere."""
    with ThrowawayService(tmp_path / "root") as service:
        environment = {**service.environment(), "ORCHESTRATOR_ROOT": str(tmp_path / "other"), "ORCHESTRATOR_PORT": "0"}
        httpx.get(f"{service.url}/healthz", timeout=300)  # from now on it catches signals
        service.stop()
        lines = [json.loads(line) for line in service.printed().splitlines() if line.startswith("{")]
    assert [line["level"] for line in lines if line["event"] == STOPS] == ["info"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orchestrator.cli", "serve"]
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while (found := re.search(rb"orchestrator is at (\S+),", shown)) is None:
                shown += os.read(ours, 65536)
            httpx.get(f"{found[1].decode()}/healthz", timeout=300)
            process.send_signal(signal.SIGINT)
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # on Linux: the other end is closed
            pass
        finally:
            process.kill()
    os.close(ours)
    assert shown.decode().count(STOPS) == 1
    assert '{"' not in shown.decode()


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="a job needs torch")
def test_a_job_that_fails_is_counted_traced_and_logged(tmp_path: Path) -> None:
    spec = python_job("raise SystemExit(3)", supervise={"budgets": {"application": 0}})
    with (
        collecting() as received,
        ThrowawayService(tmp_path / "root", {"ORCHESTRATOR_OTLP_URL": received.url}) as service,
        Client(service.url) as client,
    ):
        answer = httpx.post(f"{service.url}/api/v1/jobs", json=spec, headers={"X-Request-ID": "mine-7"})
        job_id = answer.json()["id"]
        assert until(client, job_id, ended).state == "FAILED"
        sample = partial(read, httpx.get(f"{service.url}/metrics").text)
        service.stop()  # exports the queued spans
        lines = [json.loads(line) for line in service.printed().splitlines() if line.startswith("{")]

    assert sample("orchestrator_jobs_ended_total", state="FAILED") == 1
    assert sample("orchestrator_attempts_ended_total", state="FAILED", kind="application") == 1
    assert sample("orchestrator_queue_wait_seconds_count", queue="service") == 1
    assert sample("orchestrator_queue_wait_seconds_count", queue="cluster") == 1
    assert sample("orchestrator_backend_call_seconds_count", cluster="local", call="submit") == 1
    assert (sample("orchestrator_backend_call_seconds_count", cluster="local", call="observe") or 0) > 1
    assert sample("orchestrator_lease_held", cluster="local") == 1
    assert sample("orchestrator_jobs", state="FAILED") == 1

    assert sorted(received.names()) == ["attempt 1", "job", "queue"]

    (submitted,) = [line for line in lines if line.get("request_id") == "mine-7"]
    assert (submitted["event"], submitted["status"]) == ("request", 201)
    assert [line["rule"] for line in lines if line.get("job") == job_id and line["event"] == "decided"]
