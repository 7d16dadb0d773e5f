"""Suspend, resume, snapshot and scale over HTTP, and how a job shows its requests."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.api.running import RUNNING, run
from tests.builders import make_batch, make_journal_event, make_progress


def request(world: World, job_id: str, verb: str, **options: object) -> httpx.Response:
    if verb == "scale":
        options.setdefault("json", {"nodes": 2})
    return world.client.post(f"/api/v1/jobs/{job_id}/{verb}", **options)


def requested(world: World, job_id: str) -> list[str]:
    events = world.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
    return [event["kind"] for event in events if event["kind"].endswith(".requested")]


@pytest.mark.parametrize("verb", ["suspend", "snapshot", "scale"])
def test_a_request_is_answered_with_the_job_and_recorded_once(world: World, verb: str) -> None:
    job_id = run(world)
    woken = len(world.woken)
    answers = [request(world, job_id, verb) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert [answer.json()["pending"] for answer in answers] == [[verb]] * 3
    assert [answer.json()["state"] for answer in answers] == ["RUNNING"] * 3, "only the supervisor writes status"
    assert requested(world, job_id) == [f"{verb}.requested"]
    assert len(world.woken) == woken + 1


def test_suspending_and_resuming_are_seen_in_the_job(world: World) -> None:
    job_id = run(world)

    def flags(job: dict[str, object]) -> tuple[object, ...]:
        return job["state"], job["suspended"], job["suspending"], job["pending"]

    assert flags(request(world, job_id, "suspend").json()) == ("RUNNING", True, True, ["suspend"])
    world.advance(job_id, JobState.SUSPENDED)
    assert flags(request(world, job_id, "suspend").json()) == ("SUSPENDED", True, False, [])
    listed = world.client.get("/api/v1/jobs?state=SUSPENDED").json()["items"]
    assert [job["id"] for job in listed] == [job_id]
    assert flags(request(world, job_id, "resume").json()) == ("SUSPENDED", False, False, ["resume"])
    assert flags(request(world, job_id, "resume").json()) == ("SUSPENDED", False, False, ["resume"])
    assert requested(world, job_id) == ["suspend.requested", "resume.requested"]


def test_resuming_what_is_not_suspended_changes_nothing(world: World) -> None:
    job_id = run(world)
    assert request(world, job_id, "resume").status_code == 202
    assert requested(world, job_id) == []


@pytest.mark.parametrize("verb", ["suspend", "resume", "snapshot", "scale"])
def test_a_request_to_an_ended_job_is_a_conflict(world: World, verb: str) -> None:
    job_id = world.submit()
    world.advance(job_id, *RUNNING, JobState.FAILED)
    refused = request(world, job_id, verb)
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert "has ended FAILED" in refused.json()["detail"]
    assert requested(world, job_id) == []


def test_a_second_snapshot_can_be_requested_once_the_agents_have_heard_of_the_first(world: World) -> None:
    job_id = run(world)
    request(world, job_id, "snapshot")
    attempt = replace(world.start(job_id, state=AttemptState.RUNNING), snapshots_told=1)
    world.apply(world.job(job_id), attempt)
    assert world.client.get(f"/api/v1/jobs/{job_id}").json()["pending"] == []
    request(world, job_id, "snapshot")
    assert world.job(job_id).desired.snapshot_number == 2


@pytest.mark.parametrize(("nodes", "stored"), [(2, "2"), ("2", "2"), ("2:4", "2:4")])
def test_a_job_is_scaled_by_a_number_or_a_range(world: World, nodes: object, stored: str) -> None:
    job_id = run(world)
    scaled = request(world, job_id, "scale", json={"nodes": nodes}).json()
    assert (scaled["asked"], scaled["nodes"], scaled["spec"]["topology"]["nodes"]) == (stored, "1", stored)
    assert request(world, job_id, "scale", json={"nodes": stored}).status_code == 202
    assert requested(world, job_id) == ["scale.requested"]
    text = f"nodes: {stored}\n"
    yaml = {"Content-Type": "application/yaml"}
    assert request(world, job_id, "scale", json=None, content=text, headers=yaml).status_code == 202


def test_a_queued_job_is_scaled_before_it_starts(world: World) -> None:
    job_id = world.submit()
    scaled = request(world, job_id, "scale", json={"nodes": "1:3"}).json()
    assert (scaled["asked"], scaled["nodes"], scaled["pending"]) == ("1:3", None, [])


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/nodes"]),
        ({"nodes": 0}, ["/nodes"]),
        ({"nodes": -1}, ["/nodes"]),
        ({"nodes": 99}, ["/nodes"]),
        ({"nodes": "many"}, ["/nodes"]),
        ({"nodes": "4:2"}, ["/nodes"]),
        ({"nodes": True}, ["/nodes"]),
        ({"nodes": 1.5}, ["/nodes"]),
        ({"nodes": None}, ["/nodes"]),
        ({"nodes": ["2"]}, ["/nodes"]),
        ({"nodes": 2, "workers": 3}, ["/workers"]),
        ([], [""]),
    ],
)
def test_a_wrong_number_of_nodes_is_refused_by_field(world: World, body: object, pointers: list[str]) -> None:
    job_id = run(world)
    refused = request(world, job_id, "scale", json=body)
    assert refused.status_code == 422, refused.text
    assert [error["pointer"] for error in refused.json()["errors"]] == pointers
    assert world.job(job_id).desired.number == 0


def test_a_job_shows_its_nodes_and_the_requested_number(world: World) -> None:
    job_id = world.submit(topology={"nodes": "1:4"})
    world.advance(job_id, *RUNNING)
    world.start(job_id, state=AttemptState.RUNNING, nodes="1:2", asked="1:4", excluded_nodes=("node7",))
    job = world.client.get(f"/api/v1/jobs/{job_id}").json()
    assert (job["nodes"], job["asked"], job["pending"]) == ("1:2", "1:4", [])
    attempt = world.client.get(f"/api/v1/jobs/{job_id}/attempts").json()["items"][0]
    assert (attempt["nodes"], attempt["asked"], attempt["excluded_nodes"]) == ("1:2", "1:4", ["node7"])


def test_spent_budgets_include_the_restarts_of_the_live_attempt(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, *RUNNING, spent={"application": 1, "node": 2})
    attempt = world.start(job_id, state=AttemptState.RUNNING)
    restart = make_journal_event("generation.started", generation=2, evidence={"reason": "restart"})
    restarted = make_journal_event("restart.in_place", generation=2)
    lines = [(100, make_progress(3, generation=2))]
    world.journals.ingest(
        [make_batch(job_id, progress=lines, events=[(10, restarted), (20, restart)])], arrived_at=world.clock.now()
    )
    job = world.client.get(f"/api/v1/jobs/{job_id}").json()
    assert job["phase"] == "step"
    assert job["spent"] == {"application": 1 + job["restarts"], "node": 2}
    assert job["restarts"] == 1
    world.apply(world.job(job_id), attempt.to(AttemptState.FAILED, reason="ended", now=world.clock.now()))
    ended = world.client.get(f"/api/v1/jobs/{job_id}").json()
    assert ended["spent"] == {"application": 1, "node": 2}, "restarts are charged once, at the end of the attempt"


def test_preemptions_are_free_unless_the_spec_limits_them(world: World) -> None:
    def told(**supervise: object) -> tuple[dict[str, int], int]:
        job_id = world.submit(supervise=supervise)
        world.advance(job_id, *RUNNING, spent={"preemption": 2})
        job = world.client.get(f"/api/v1/jobs/{job_id}").json()
        return job["spent"], job["preemptions"]

    assert told() == ({}, 2)
    assert told(budgets={"preemption": 5}) == ({"preemption": 2}, 2)


def test_a_dependency_must_exist_and_a_patch_cannot_create_a_cycle(world: World) -> None:
    first = world.submit(name="first")
    second = world.submit(name="second", after=[first])
    third = world.submit(name="third", after=[second])
    unknown = world.post_spec(after=[first, "absent"])
    assert [error["pointer"] for error in unknown.json()["errors"]] == ["/after/1"]
    for job_id, after in ((first, third), (first, first), (second, third)):
        refused = world.client.post(f"/api/v1/jobs/{job_id}/retry", json={"patch": {"after": [after]}})
        assert refused.status_code == 422, (job_id, after)
        assert refused.json()["errors"][0]["pointer"] == "/patch/after/0"
    assert world.client.post(f"/api/v1/jobs/{third}/retry", json={"patch": {"after": [first]}}).status_code == 202
