"""Arrays over HTTP: submitted whole or not at all, seen and changed by those who may."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World

PATH = "/api/v1/arrays"
SWEEP = {"product": {"--lr": [0.1, 0.01], "run.env.SEED": [1, 2]}, "at_once": 2}


def submit(world: World, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return world.client.post(PATH, json=world.spec(**{"sweep": SWEEP, **fields}), headers=headers)


def test_a_sweep_makes_an_array_of_jobs(world: World) -> None:
    answer = submit(world)
    assert answer.status_code == 201
    array = world.client.get(answer.headers["location"]).json()
    assert array == answer.json()
    assert (array["size"], array["at_once"], array["project"], array["refused"]) == (4, 2, "default", [])
    assert [member["index"] for member in array["members"]] == [1, 2, 3, 4]
    assert array["members"][2]["values"] == {"--lr": "0.01", "run.env.SEED": "1"}
    job = world.client.get(f"/api/v1/jobs/{array['members'][2]['job_id']}").json()
    assert (job["name"], job["labels"]) == ("demo-3", {"array": array["id"]})
    assert job["spec"]["run"]["args"] == ["--lr", "0.01"]
    assert len(world.client.get("/api/v1/jobs", params={"label": f"array={array['id']}"}).json()["items"]) == 4


def test_the_same_key_and_sweep_give_the_same_array_also_if_a_part_was_stored(world: World) -> None:
    first = submit(world, "k1")
    ids = [member["job_id"] for member in first.json()["members"]]
    world.advance(ids[2], JobState.CANCELLED)
    assert world.client.delete(f"/api/v1/jobs/{ids[2]}").status_code == 200
    again = submit(world, "k1")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    known = [member["job_id"] for member in again.json()["members"]]
    assert [known[0], known[1], known[3]] == [ids[0], ids[1], ids[3]]
    assert known[2] != ids[2]
    assert submit(world, "k1").status_code == 200
    other = {"product": {"--lr": [0.2, 0.01], "run.env.SEED": [1, 2]}, "at_once": 2}
    assert submit(world, "k1", sweep=other).status_code == 409
    assert submit(world, "k1", name="other").status_code == 409
    assert submit(world).json()["id"] != first.json()["id"]


def test_fields_without_effect_are_named_once(world: World) -> None:
    warnings = submit(world, resources={"memory_gb": 8}).json()["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith("resources.memory_gb")


def test_the_page_to_submit_a_copy_of_a_member_leaves_its_array_out(world: World) -> None:
    member = submit(world).json()["members"][0]["job_id"]
    page = world.client.get("/submit", params={"from": member}, headers={"Accept": "text/html"}).text
    assert "--lr" in page
    assert "array" not in page.partition("<main")[2]


def test_nothing_is_stored_unless_every_member_is_accepted(world: World) -> None:
    answer = submit(world, sweep={"product": {"run.script": ["train.py", "missing.py"]}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/run/script"
    assert world.client.get("/api/v1/jobs").json()["items"] == []


def test_the_services_own_fields_are_refused(world: World) -> None:
    place = {"id": "demo-aaaaaaaa", "index": 1, "size": 1}
    assert world.post_spec(array=place).json()["errors"][0]["pointer"] == "/array"
    assert submit(world, array=place).status_code == 422
    assert submit(world, labels={"array": "x"}).status_code == 422
    answer = world.post_spec(sweep=SWEEP)
    assert answer.json()["errors"] == [
        {
            "pointer": "/sweep",
            "detail": "makes an array of jobs; send it to /api/v1/arrays, or use `orchestrator submit`",
        }
    ]
    job_id = submit(world).json()["members"][0]["job_id"]
    world.advance(job_id, JobState.CANCELLED)
    for patch in ({"array": {**place, "at_once": 100}}, {"labels": {"array": "x"}}, {"labels": {"array": None}}):
        assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": patch}).status_code == 422
    assert world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": {"labels": {"a": "b"}}}).status_code == 202


def test_a_label_alone_makes_no_member(world: World) -> None:
    array = submit(world).json()
    world.submit(labels={"array": array["id"]})
    assert world.client.get(f"{PATH}/{array['id']}").json() == array
    world.submit(labels={"array": "own"})
    assert world.client.get(f"{PATH}/own").status_code == 404


def test_cancel_reaches_the_rest_and_retry_the_failed_ones(world: World) -> None:
    array = submit(world).json()
    ids = [member["job_id"] for member in array["members"]]
    world.advance(ids[0], JobState.STARTING, JobState.SUCCEEDED)
    world.advance(ids[1], JobState.STARTING, JobState.FAILED)
    cancelled = world.client.post(f"{PATH}/{array['id']}/cancel")
    assert cancelled.status_code == 202
    assert [world.job(job_id).desired.cancelled for job_id in ids] == [False, False, True, True]
    retried = world.client.post(f"{PATH}/{array['id']}/retry").json()
    assert [world.job(job_id).desired.retry_number for job_id in ids] == [0, 1, 0, 0]
    assert [member["ended"] for member in retried["members"]] == [True, False, False, False]


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_who_may_not_change_a_job_may_not_change_it_through_its_array(world: World, verb: str) -> None:
    alice, bob, eve = (world.give(f"{project}=submitter", name=name) for project, name in PEOPLE)
    array = world.client.post(PATH, json=world.spec(sweep=SWEEP), headers=alice).json()
    for member in array["members"]:
        world.advance(member["job_id"], *([JobState.FAILED] if verb == "retry" else []))
    path = f"{PATH}/{array['id']}"
    assert world.client.get(path, headers=eve).status_code == 404
    assert world.client.post(f"{path}/{verb}", headers=eve).status_code == 404
    refused = world.client.post(f"{path}/{verb}", headers=bob)
    assert refused.json()["refused"] == [f"you may not {verb} job {each['job_id']}" for each in array["members"]]
    assert world.client.post(f"{path}/{verb}", headers=alice).json()["refused"] == []


PEOPLE = (("default", "alice"), ("default", "bob"), ("other", "eve"))


def test_a_comparison_shows_no_job_that_the_caller_may_not_see(world: World) -> None:
    own, foreign = world.submit(), world.submit(project="other")
    alice = {**world.give("default=viewer"), "Accept": "application/json"}
    for path in ("/compare", "/compare/curves"):
        assert world.client.get(path, params={"job": [own]}, headers=alice).status_code == 200
        for jobs in ([own, foreign], [own, "missing-1"]):
            assert world.client.get(path, params={"job": jobs}, headers=alice).status_code == 404
        assert world.client.get(path, params={"job": [own] * 13}, headers=alice).status_code == 422
    assert world.client.get("/compare", headers=alice).status_code == 422
