"""ETag and If-None-Match."""

from __future__ import annotations

import pytest

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World


@pytest.mark.parametrize("what", ["", "/attempts", "/events", "/metrics"])
def test_an_unchanged_answer_is_304(world: World, what: str) -> None:
    path = f"/api/v1/jobs/{world.submit()}{what}"
    first = world.client.get(path)
    tag = first.headers["etag"]
    again = world.client.get(path, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert world.client.get(path, headers={"If-None-Match": '"other"'}).json() == first.json()


def test_a_change_gets_another_etag(world: World) -> None:
    job_id = world.submit()
    path = f"/api/v1/jobs/{job_id}"
    tag = world.client.get(path).headers["etag"]
    world.advance(job_id, JobState.CANCELLED)
    answer = world.client.get(path, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")
    assert answer.headers["etag"] != tag


def test_an_etag_grants_no_access(closed: World) -> None:
    viewer = closed.give("default=viewer")
    tag = closed.client.get("/api/v1/jobs", headers=viewer).headers["etag"]
    assert closed.client.get("/api/v1/jobs", headers={"If-None-Match": tag}).status_code == 401
    assert closed.client.get("/api/v1/jobs", headers={"If-None-Match": "*"}).status_code == 401


def test_errors_and_requests_have_no_etag(world: World) -> None:
    assert "etag" not in world.client.get("/api/v1/jobs/unknown-1", headers={"If-None-Match": "*"}).headers
    answer = world.client.post(f"/api/v1/jobs/{world.submit()}/cancel", headers={"If-None-Match": "*"})
    assert (answer.status_code, "etag" in answer.headers) == (202, False)
