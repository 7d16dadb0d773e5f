"""Shares of the device time over HTTP: whose, when, and who may see them."""

from __future__ import annotations

from datetime import timedelta

from tests.api.conftest import World


def test_the_shares_of_projects_add_up(world: World) -> None:
    world.start(
        world.submit(project="vision", topology={"nodes": "1", "workers_per_node": 2}),
        nodes="1",
        created_at=world.clock.now(),
    )
    world.start(world.submit(project="speech"), nodes="1", created_at=world.clock.now())
    world.submit(project="ranking")  # waits for its first attempt
    world.clock.moment += timedelta(seconds=30)
    found = world.client.get("/api/v1/goodput").json()
    assert [(share["name"], share["device_seconds"], share["jobs"]) for share in found["items"]] == [
        ("vision", 60.0, 1),
        ("speech", 30.0, 1),
    ]
    assert (found["by"], found["currency"], found["total"]["device_seconds"]) == ("project", "EUR", 90.0)
    assert found["total"]["cost"] == 0.05


def test_shares_cover_only_the_callers_projects(closed: World) -> None:
    boss = {"Authorization": "Bearer the first admin's token"}
    for project in ("vision", "speech"):
        answer = closed.client.post("/api/v1/jobs", json=closed.spec(project=project), headers=boss)
        closed.start(answer.json()["id"], nodes="1", created_at=closed.clock.now())
    closed.clock.moment += timedelta(seconds=30)
    alice = closed.give("vision=viewer")

    def names(headers: dict[str, str], **query: str) -> list[str]:
        answer = closed.client.get("/api/v1/goodput", headers=headers, params=query)
        return sorted(share["name"] for share in answer.json()["items"])

    assert names(alice) == ["vision"]
    assert names(alice, project="speech") == []
    assert names(boss) == ["speech", "vision"]
    assert names(boss, project="speech") == ["speech"]
    seen = closed.client.get("/metrics", headers=alice).text
    assert 'project="vision"' in seen
    assert 'project="speech"' not in seen
    assert (
        'orchestrator_device_seconds{bin="start_up",project="speech"} 30.0'
        in closed.client.get("/metrics", headers=boss).text
    )


def test_invalid_parameters_of_goodput_are_refused_by_field(world: World) -> None:
    def pointers(**query: str) -> list[str]:
        answer = world.client.get("/api/v1/goodput", params=query)
        assert answer.status_code == 422
        return [error["pointer"] for error in answer.json()["errors"]]

    assert pointers(by="colour") == ["/query/by"]
    assert pointers(since="2026-05-05T00:00:00Z", until="2026-05-05T00:00:00Z") == ["/query/since"]


def test_the_earliest_and_latest_times_are_accepted(world: World) -> None:
    world.submit()
    for query in ({"until": "0001-01-01T00:00:00Z"}, {"since": "9999-12-31T23:59:59Z"}):
        answer = world.client.get("/api/v1/goodput", params=query)
        assert (answer.status_code, answer.json()["items"]) == (200, [])


def test_the_goodput_of_a_job_has_its_cost_and_gains(world: World) -> None:
    job_id = world.submit()
    found = world.client.get(f"/api/v1/jobs/{job_id}/goodput").json()
    assert (found["cost"], found["lost_cost"], found["currency"]) == (0.0, 0.0, "EUR")
    assert [(gain["name"], gain["device_seconds"]) for gain in found["gains"]] == [("snapshot-interval", None)]
    assert "no failure so far has cost the steps since a snapshot" in found["gains"][0]["sentence"]
