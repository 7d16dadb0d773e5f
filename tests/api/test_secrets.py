"""Secrets over HTTP: never returned, named by jobs, and masked in plans and logs."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.masking import MASK
from tests.api.conftest import World

VALUE = "hunter2-hunter2"


def put(world: World, **fields: Any) -> Any:
    return world.client.post("/api/v1/secrets", json={"name": "WANDB_API_KEY", "value": VALUE, **fields})


def with_secret(world: World, *names: str, **fields: Any) -> dict[str, Any]:
    return world.spec(run={"command": ["true"], "workdir": str(world.workdir), "secrets": names, **fields})


def test_a_secret_is_stored_and_never_shown(world: World) -> None:
    with capture_logs() as logged:
        first, second = put(world), put(world, value=VALUE + "-2")
    assert (first.status_code, second.status_code) == (201, 200)
    listed = world.client.get("/api/v1/secrets")
    assert [(each["project"], each["name"], each["updated_by"]) for each in listed.json()["items"]] == [
        ("default", "WANDB_API_KEY", "local")
    ]
    assert VALUE not in first.text + second.text + listed.text + str(logged)
    assert b"hunter2" not in (world.root.parent / "orchestrator.db").read_bytes()
    assert world.client.get("/api/v1/secrets?project=other").json()["items"] == []


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"value": "short"}, "/value"),
        ({"value": 123456789012}, "/value"),
        ({"value": [VALUE]}, "/value"),
        ({"value": VALUE * 5000}, "/value"),
        ({"name": "not a name"}, "/name"),
        ({"project": "*"}, "/project"),
        ({"valeu": VALUE}, "/valeu"),
    ],
)
def test_a_refused_secret_is_not_returned(world: World, fields: dict[str, Any], pointer: str) -> None:
    answer = put(world, **fields)
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]
    assert "hunter2" not in answer.text
    assert "123456789012" not in answer.text


def test_a_job_may_name_only_secrets_of_its_project(world: World) -> None:
    spec = with_secret(world, "WANDB_API_KEY", "OTHER_KEY")
    answer = world.client.post("/api/v1/jobs", json=spec)
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/run/secrets/0", "/run/secrets/1"]
    put(world)
    put(world, name="OTHER_KEY")
    assert world.client.post("/api/v1/jobs", json=spec).status_code == 201
    foreign = world.client.post("/api/v1/jobs", json={**spec, "project": "vision"})
    assert foreign.status_code == 422, "jobs cannot use secrets of other projects"


@pytest.mark.parametrize("name", ["ORCHESTRATOR_TOKEN", "RANK", "PYTHONHOME"])
def test_a_secret_cannot_take_the_place_of_what_the_launcher_sets(world: World, name: str) -> None:
    answer = world.client.post("/api/v1/jobs", json=with_secret(world, name))
    assert answer.status_code == 422
    assert name in answer.json()["detail"]


def test_a_name_in_both_env_and_secrets_is_refused(world: World) -> None:
    put(world)
    spec = with_secret(world, "WANDB_API_KEY", env={"WANDB_API_KEY": "x"})
    assert "is in both env and secrets" in world.client.post("/api/v1/jobs", json=spec).json()["detail"]


def test_a_plan_names_secrets_and_hides_them(world: World) -> None:
    put(world)
    answer = world.client.post("/api/v1/plan", json=with_secret(world, "WANDB_API_KEY"))
    assert answer.json()["replicas"][0]["env"]["WANDB_API_KEY"] == MASK
    assert VALUE not in answer.text


def test_logs_are_masked_before_they_are_searched(world: World) -> None:
    put(world)
    job_id = world.client.post("/api/v1/jobs", json=with_secret(world, "WANDB_API_KEY")).json()["id"]
    world.advance(job_id, JobState.STARTING)
    world.start(job_id)
    world.write_log(job_id, f"key is {VALUE}\nplain line\n")
    path = f"/api/v1/jobs/{job_id}/logs"
    assert world.client.get(path).text == f"key is {MASK}\nplain line\n"
    assert world.client.get(path, params={"grep": "hunter"}).text == "", (
        "a search would reveal the secret letter by letter"
    )
    assert world.client.get(path, params={"grep": "key"}).text == f"key is {MASK}\n"
    assert VALUE not in world.client.get(f"/jobs/{job_id}").text
    world.advance(job_id, JobState.FAILED)
    assert world.client.get(path, params={"follow": "true"}).text == f"key is {MASK}\nplain line\n"
    assert world.client.get(path, params={"follow": "true", "grep": "hunter"}).text == ""


def test_a_new_secret_is_hidden_in_old_lines_too(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.STARTING)
    world.start(job_id)
    world.write_log(job_id, f"key is {VALUE}\n")
    assert VALUE in world.client.get(f"/api/v1/jobs/{job_id}/logs").text
    put(world)
    assert VALUE not in world.client.get(f"/api/v1/jobs/{job_id}/logs").text
