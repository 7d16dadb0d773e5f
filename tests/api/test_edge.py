"""Every request: host and origin checks, problem documents, request ids, health, metrics, and no 5xx for garbage."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from orchestrator.api.app import create_app
from orchestrator.domain.errors import InvalidTransition, StoreUnavailable
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.api.fakes import Client
from tests.builders import make_batch, make_journal_event
from tests.examples import examples
from trainer.contract.clock import render_time


@pytest.mark.parametrize("host", ["localhost", "localhost:8700", "127.0.0.1:1", "[::1]:8700", "LOCALHOST"])
def test_the_loopback_names_are_served(client: Client, host: str) -> None:
    assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8700", "[::1", "", "a@localhost@b"]
)
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    for path in ("/api/v1/jobs", "/", "/healthz"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 400
        assert answer.json()["type"] == "/problems/host-not-allowed"


def test_a_configured_host_name_is_served(world: World) -> None:
    client = Client(create_app(replace(world.services, hosts=("train.example",))))
    assert client.get("/healthz", headers={"Host": "train.example:8700"}).status_code == 200
    client.close()


def test_a_request_for_the_service_of_another_run_directory_changes_nothing(world: World) -> None:
    """Its caller read the address from a file, and this service has taken over the port."""
    job_id = world.submit()
    answer = world.client.post(f"/api/v1/jobs/{job_id}/cancel", headers={"Orchestrator-Instance": "another"})
    assert answer.status_code == 421
    assert answer.json()["type"] == "/problems/another-service"
    assert world.job(job_id).desired.cancelled is False
    mine = {"Orchestrator-Instance": world.services.instance}
    assert world.client.post(f"/api/v1/jobs/{job_id}/cancel", headers=mine).status_code == 202


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9999", "http://127.0.0.1:8700", "file://", "http://["]
)
def test_a_page_of_another_origin_changes_nothing(world: World, origin: str) -> None:
    job_id = world.submit()
    for path in (f"/api/v1/jobs/{job_id}/cancel", f"/jobs/{job_id}/cancel"):
        answer = world.client.post(path, headers={"Origin": origin})
        assert answer.status_code == 403
        assert answer.json()["type"] == "/problems/origin-not-allowed"
    assert world.job(job_id).desired.cancelled is False


def test_a_cross_site_request_without_an_origin_changes_nothing(world: World) -> None:
    answer = world.client.post(f"/api/v1/jobs/{world.submit()}/cancel", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_our_own_pages_may_change_things(world: World) -> None:
    headers = {"Origin": "http://localhost:8700", "Sec-Fetch-Site": "same-origin"}
    assert world.client.post(f"/api/v1/jobs/{world.submit()}/cancel", headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api/v1/nowhere", 404),
        ("GET", "/api/v1/jobs/", 404),
        ("DELETE", "/api/v1/jobs", 405),
        ("GET", "/api/v1/plan", 405),
        ("BREW", "/api/v1/jobs", 405),
    ],
)
def test_routing_errors_are_problem_documents(client: Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert ("allow" in answer.headers) == (status == 405)


def test_a_store_that_does_not_answer_gives_503_with_retry_after(world: World) -> None:
    world.intake.error = StoreUnavailable("the database is locked")
    body = {"job_id": "x", "attempt": 1, "replica": 0, "incarnation": 1}
    answer = world.client.post("/api/v1/reports", json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["detail"] == "the database is locked"


@pytest.mark.parametrize("error", [RuntimeError("secret of the inside"), InvalidTransition("secret of the inside")])
def test_an_unexpected_error_is_a_500_without_internals(world: World, error: Exception) -> None:
    world.intake.error = error
    body = {"job_id": "x", "attempt": 1, "replica": 0, "incarnation": 1}
    with capture_logs() as logged:
        answer = world.client.post("/api/v1/reports", json=body, headers={"X-Request-ID": "r-1"})
    failed = [entry for entry in logged if entry["event"] == "request failed"]
    assert [(entry["log_level"], entry["path"]) for entry in failed] == [("error", "/api/v1/reports")]
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "r-1" in answer.json()["detail"]


def test_every_answer_has_a_request_id_and_the_safe_headers(client: Client) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": "abc"}).headers["x-request-id"] == "abc"
    for path in ("/healthz", "/nowhere", "/"):
        answer = client.get(path, headers={"X-Request-ID": "two words"})
        assert len(answer.headers["x-request-id"]) == 32
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "same-origin"


def test_health_and_readiness(world: World) -> None:
    assert world.client.get("/healthz").json() == {"status": "ok", "version": "1.2.3", "detail": ""}
    assert world.client.get("/readyz").json()["status"] == "ready"
    waiting = Client(create_app(replace(world.services, ready=lambda: (False, "the supervisor stands"))))
    answer = waiting.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the supervisor stands")
    assert waiting.get("/healthz").status_code == 200
    waiting.close()


def test_metrics_count_jobs_requests_and_passes(world: World) -> None:
    world.submit()
    world.client.get("/api/v1/jobs/absent-1")
    world.client.get("/api/v1/jobs/absent-2")
    world.services.metrics.pass_seconds.labels(cluster="local").observe(0.1)
    text = world.client.get("/metrics").text
    assert 'orchestrator_jobs{state="QUEUED"} 1.0' in text
    assert 'orchestrator_requests_total{method="GET",route="/api/v1/jobs/{job_id}",status="404"} 2.0' in text
    assert 'orchestrator_pass_seconds_count{cluster="local"} 1.0' in text
    assert 'orchestrator_request_seconds_count{method="GET",route="/api/v1/jobs/{job_id}"} 2.0' in text
    assert "absent-1" not in text


def test_metrics_have_current_levels(world: World) -> None:
    job_id = world.submit()
    world.clock.moment += timedelta(seconds=90)
    assert 'orchestrator_oldest_queued_seconds{cluster="local"} 90.0' in world.client.get("/metrics").text
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id)
    name = {"name": "step-00000001-a1-g1"}
    told = make_journal_event("snapshot.committed", at=render_time(world.clock.now()), evidence=name)
    world.journals.ingest([make_batch(job_id, events=[(50, told)])], arrived_at=world.clock.now())
    world.clock.moment += timedelta(seconds=30)
    text = world.client.get("/metrics").text
    assert 'orchestrator_oldest_snapshot_seconds{cluster="local"} 30.0' in text
    assert "orchestrator_oldest_queued_seconds{" not in text


def test_metrics_without_a_store_have_no_old_levels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise StoreUnavailable("no answer")

    world.submit()
    assert "orchestrator_jobs{" in world.client.get("/metrics").text
    monkeypatch.setattr(world.services.inventory, "ages", silent)
    answer = world.client.get("/metrics")
    assert answer.status_code == 200
    assert "orchestrator_jobs{" not in answer.text
    assert "orchestrator_requests_total{" in answer.text


def test_a_change_is_logged_with_its_request_id_and_job(world: World) -> None:
    job_id = world.submit()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = world.client.post(f"/api/v1/jobs/{job_id}/cancel", headers={"X-Request-ID": "mine-1"})
        world.client.get("/api/v1/jobs?q=what-a-query-holds")
    told = [line for line in lines if line["event"] == "request"]
    assert answer.headers["x-request-id"] == "mine-1"
    assert [(line["log_level"], line["method"], line["status"]) for line in told] == [
        ("info", "POST", 202),
        ("debug", "GET", 200),
    ]
    assert (told[0]["request_id"], told[0]["job"]) == ("mine-1", job_id)
    assert told[0]["route"] == "/api/v1/jobs/{job_id}/cancel"
    assert "what-a-query-holds" not in str(told)


def test_openapi_describes_bodies_and_problems(client: Client) -> None:
    document = client.get("/openapi.json").json()
    submit = document["paths"]["/api/v1/jobs"]["post"]
    assert {"200", "201", "400", "409", "413", "415", "422", "503"} <= set(submit["responses"])
    assert set(submit["responses"]["409"]["content"]) == {"application/problem+json"}
    assert set(submit["requestBody"]["content"]) == {"application/json", "application/yaml"}
    assert "/jobs/{job_id}" not in document["paths"]
    schemas = document["components"]["schemas"]
    references = {
        part.partition('"')[0] for part in client.get("/openapi.json").text.split("#/components/schemas/")[1:]
    }
    assert references <= set(schemas)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "name",
        "run",
        "topology",
        "resources",
        "placement",
        "snapshot",
        "supervise",
        "labels",
        "priority",
        "after",
        "cluster",
    ]
)
GARBAGE = settings(
    max_examples=examples(15, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@GARBAGE
@given(fields=st.dictionaries(FIELDS, JSON_VALUES, max_size=5))
def test_no_spec_brings_the_service_down(world: World, fields: dict[str, object]) -> None:
    for path in ("/api/v1/plan", "/api/v1/jobs"):
        answer = world.client.request(
            "POST", path, content=_dump(world.spec(**fields)), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code < 500, answer.text


def _dump(document: object) -> bytes:
    return json.dumps(document).encode(errors="replace")
