"""The page of the fleet: losses of the caller's jobs, by cause and owner."""

from __future__ import annotations

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import at
from tests.dashboard.looks import make_trained_job, page
from trainer.contract.failure import Failure, FailureKind


def test_the_fleet_page_covers_only_the_callers_projects(closed: World) -> None:
    headers = closed.give("research=submitter", name="ada")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(project="research"), headers=headers).json()["id"]
    closed.advance(job_id, JobState.STARTING, JobState.RUNNING)
    crash = Failure(kind=FailureKind.APPLICATION, message="KeyError: 'labels'")
    closed.start(job_id, state=AttemptState.FAILED, ended_at=at(3600), failure=crash)
    closed.clock.moment = at(7200)
    for path in ("/fleet", "/fleet?days=1", "/fleet?days=30&project=research"):
        text = page(closed, path, **headers)
        assert "Device-hours used" in text
        assert job_id in text
    for path in ("/fleet?project=vision", "/fleet?days=3", "/fleet?by=weather"):
        assert page(closed, path, **headers)
    assert "No jobs ran" in page(closed, "/fleet?project=vision", **headers)
    stranger = closed.give("vision=admin")
    assert "No jobs ran" in page(closed, "/fleet?project=research", **stranger)


def test_the_fleet_page_shows_causes_and_owners_of_losses(world: World) -> None:
    job_id = make_trained_job(world)
    world.clock.moment = at(7200)
    shares = {by: world.client.get(f"/api/v1/goodput?by={by}").json() for by in ("cause", "user", "node")}
    causes = [share["name"] for share in shares["cause"]["items"] if share["name"]]
    assert causes
    assert all(f"<td>{name}</td>" in page(world, "/fleet") for name in causes)
    assert f"/jobs/{job_id}" in page(world, "/fleet?by=job")
    for by in ("user", "node"):
        assert all((share["name"] or "none") in page(world, f"/fleet?by={by}") for share in shares[by]["items"])
