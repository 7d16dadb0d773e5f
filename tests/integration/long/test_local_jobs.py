"""Jobs on this machine: waiting, kills, new attempts, and a service that is down."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, until

FOREVER = "import time; time.sleep(600)"


def test_a_job_without_free_slots_waits_with_the_reason(client: Client) -> None:
    first = client.submit(python_job("import time; time.sleep(4)", workers=3))
    second = client.submit(python_job("pass", workers=3))
    waiting = until(client, second.id, lambda job: "slots" in job.reason)
    assert waiting.state == "QUEUED"
    assert waiting.reason == "needs 3 slots; 1 of 4 is free"
    assert until(client, second.id, ended).state == "SUCCEEDED"
    assert client.job(first.id).state == "SUCCEEDED"


def test_a_worker_that_ignores_sigterm_is_killed(service: ThrowawayService, client: Client) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {FOREVER}"
    job = until(client, client.submit(python_job(stubborn)).id, running)
    until(client, job.id, lambda _: "ready" in client.logs(job.id))
    client.cancel(job.id)
    assert until(client, job.id, ended).state == "CANCELLED"
    assert list(service.processes()) == []


@pytest.mark.smoke
def test_a_job_that_ended_while_the_service_was_down_is_adopted(service: ThrowawayService, client: Client) -> None:
    good = until(client, client.submit(python_job("import time; time.sleep(3)")).id, running)
    bad = until(
        client,
        client.submit(
            python_job("import time; time.sleep(3); raise SystemExit(7)", supervise={"budgets": {"application": 0}})
        ).id,
        running,
    )
    service.kill()
    wait_for(lambda: not list(service.processes()), "end of the jobs' processes")
    service.start()
    with Client(service.url) as again:
        assert (until(again, good.id, ended).state, until(again, bad.id, ended).state) == ("SUCCEEDED", "FAILED")
        assert again.job(good.id).attempts == again.job(bad.id).attempts == 1


def test_after_a_taken_rendezvous_port_the_next_one_is_used_without_a_charge(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = port + 1 if port < 65535 else port - 1
        settings = {"ORCHESTRATOR_RENDEZVOUS_PORTS": str(sorted([port, free])), "ORCHESTRATOR_POLL_S": "0.1"}
        spec = python_job("pass", supervise={"budgets": {"application": 0, "node": 0}, "backoff_s": [0.1, 0.2]})
        spec["topology"]["nodes"] = 2  # a single agent needs no rendezvous
        with ThrowawayService(tmp_path, settings) as service, Client(service.url) as client:
            for _ in range(12):  # a job's first port is one of the two
                job = until(client, client.submit(spec).id, ended)
                assert job.state == "SUCCEEDED", job.reason
                first, *rest = client.attempts(job.id)
                if first.port == port:
                    break
    assert (first.port, first.state) == (port, "FAILED")
    assert first.failure is not None
    assert first.failure.kind == "rendezvous"
    assert [attempt.port for attempt in rest] == [free]


def test_a_missing_workdir_fails_the_job_without_a_retry(
    client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("work")
    blocker = client.submit(python_job("import time; time.sleep(3)", workers=4))
    spec = python_job("pass")
    spec["run"]["workdir"] = str(folder)
    job = client.submit(spec)
    folder.rmdir()
    failed = until(client, job.id, ended)
    assert failed.state == "FAILED"
    assert str(folder) in failed.reason
    assert until(client, blocker.id, ended).state == "SUCCEEDED"


def test_agents_report_over_http_if_an_address_is_advertised(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {"ORCHESTRATOR_PORT": str(port), "ORCHESTRATOR_ADVERTISE_URL": url}
    with ThrowawayService(tmp_path, settings) as service, Client(service.url) as client:
        job = until(client, client.submit(python_job("import time; time.sleep(3)")).id, ended)
        with urllib.request.urlopen(f"{url}/metrics", timeout=300) as answer:
            metrics = answer.read().decode()
        kinds = [event.kind for event in client.events(job.id)]
    assert job.state == "SUCCEEDED"
    reports = [line for line in metrics.splitlines() if "/api/v1/reports" in line and 'status="200"' in line]
    assert reports
    assert kinds.count("generation.started") == 1, "reported by HTTP and read from the run directory, but stored once"
