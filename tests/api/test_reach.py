"""The service checks the text of URLs in a job and does not open them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World

# Public by their text. The service does not resolve names.
URLS = (
    "webhdfs://127.0.0.1.nip.io/x",
    "sftp://rebinding.example/latest/meta-data",
    "s3://bucket/a",
    "gs://bucket/a",
    "sftp://files.example/a",
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records all attempts to reach another machine, and refuses them."""
    taken: list[str] = []

    def refuse(name: str) -> Any:
        def wrapped(*arguments: object, **_: object) -> None:
            taken.append(f"{name}{arguments}")
            raise AssertionError(f"the service asked the network: {name}{arguments}")

        return wrapped

    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "create_connection"):
        monkeypatch.setattr(socket, name, refuse(name))
    monkeypatch.setattr(socket.socket, "connect", refuse("connect"))
    monkeypatch.setattr(socket.socket, "connect_ex", refuse("connect_ex"))
    return taken


@pytest.mark.parametrize("url", URLS)
def test_no_url_of_a_job_is_resolved_or_opened_by_the_service(world: World, calls: list[str], url: str) -> None:
    snapshot = {"dir": url, "from": f"{url}/step-00000001-a1-g1"}
    assert world.post_spec("/api/v1/plan", snapshot=snapshot).status_code == 200
    job_id = world.submit(snapshot=snapshot)
    for path in ("request", "snapshots", "why", "logs", "goodput", "events"):
        assert world.client.get(f"/api/v1/jobs/{job_id}/{path}").status_code == 200
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/launch"):
        assert world.client.get(path, headers={"Accept": "text/html"}).status_code == 200
    world.advance(job_id, JobState.CANCELLED)
    retry = {"restore_from": "step-00000001-a1-g1", "patch": {"labels": {"a": "b"}}}
    world.client.post(f"/api/v1/jobs/{job_id}/retry", json=retry)
    assert calls == []


@pytest.mark.parametrize("field", ["dir", "from"])
@pytest.mark.parametrize("place", ["file:///etc", "local:/etc", "simplecache::s3://bucket/x"])
def test_a_folder_of_the_machine_is_named_by_its_path_and_not_by_a_url(world: World, field: str, place: str) -> None:
    for path in ("/api/v1/jobs", "/api/v1/plan"):
        answer = world.post_spec(path, snapshot={field: place})
        assert answer.status_code == 422, (path, answer.text)
        assert {error["pointer"] for error in answer.json()["errors"]} == {f"/snapshot/{field}"}


def test_a_patch_cannot_set_a_private_address(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.CANCELLED)
    for field in ("dir", "from"):
        patch = {"snapshot": {field: "http://10.0.0.1/x"}}
        answer = world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": patch})
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"/patch/snapshot/{field}"]
