"""Clusters, nodes and projects over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.api.running import RUNNING, run
from tests.builders import NOW, at
from trainer.contract.failure import FailureKind


def items(world: World, path: str) -> list[dict[str, Any]]:
    answer = world.client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["next_cursor"] is None
    return list(document["items"])


def left_running(world: World, state: JobState, attempt: AttemptState) -> None:
    """Submit a job that ran and is now in `state`."""
    job_id = world.submit()
    world.advance(job_id, *RUNNING, state)
    world.start(job_id, state=attempt)


def test_a_cluster_shows_its_slots_jobs_and_supervisor(world: World) -> None:
    (empty,) = items(world, "clusters")
    assert (empty["name"], empty["kind"], empty["lease"], empty["jobs"]) == ("local", "local", None, {})
    assert empty["slots"] == {"used": 0, "total": 4, "free": 4}
    run(world, topology={"workers_per_node": 2})
    left_running(world, JobState.RECOVERING, AttemptState.LOST)
    left_running(world, JobState.SUCCEEDED, AttemptState.SUCCEEDED)
    left_running(world, JobState.SUSPENDED, AttemptState.CANCELLED)
    world.submit()
    (cluster,) = items(world, "clusters")
    assert cluster["slots"] == {"used": 3, "total": 4, "free": 1}, "a job keeps its slots between two attempts"
    assert cluster["jobs"] == {"RUNNING": 1, "RECOVERING": 1, "SUSPENDED": 1, "QUEUED": 1}
    assert (cluster["answers"], cluster["detail"], cluster["max_jobs"]) == (True, "", 9)
    assert cluster["lease"]["holder"] == "the test"
    assert cluster["lease"]["since"] <= cluster["lease"]["expires_at"]
    assert cluster["lease"]["expired"] is False


def test_a_job_that_is_being_suspended_holds_its_slots_until_it_has_stopped(world: World) -> None:
    job_id = run(world)
    world.client.post(f"/api/v1/jobs/{job_id}/suspend")
    assert items(world, "clusters")[0]["slots"]["used"] == 1


def test_a_cluster_that_does_not_answer_is_listed_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> int:
        raise BackendUnavailable("no answer within 30 s")

    run(world)
    monkeypatch.setattr(world.backend, "slots", silent)
    (cluster,) = items(world, "clusters")
    assert (cluster["answers"], cluster["detail"]) == (False, "no answer within 30 s")
    assert cluster["slots"] == {"used": 1, "total": None, "free": None}


def test_a_node_with_failures_shows_until_when_it_is_avoided(world: World) -> None:
    assert items(world, "nodes") == []
    job_id = run(world)
    world.blame("node7", job_id, sentence="it fell silent")
    world.blame("node8", job_id, kind=FailureKind.HANG, sentence="rank 3 stopped first")
    first, second = items(world, "nodes")
    assert (first["name"], first["cluster"], first["failures"]) == ("node7", "local", 1)
    assert first["excluded_until"] == at(3600).isoformat().replace("+00:00", "Z")
    assert (first["last_kind"], first["last_sentence"], first["last_job"]) == ("node", "it fell silent", job_id)
    assert second["excluded_until"] is None, "one hang is no evidence against the node"
    assert [node["name"] for node in items(world, "nodes?cluster=local")] == ["node7", "node8"]
    assert items(world, "nodes?cluster=elsewhere") == []


def test_an_old_record_of_a_node_expires(world: World) -> None:
    world.blame("node7", run(world))
    world.clock.moment = NOW + timedelta(hours=2)
    assert [node["excluded_until"] for node in items(world, "nodes")] == [None]
    world.clock.moment = NOW + timedelta(hours=33)
    assert items(world, "nodes") == []


def test_clearing_a_record_is_logged_and_wakes_the_supervisors(world: World) -> None:
    job_id = run(world)
    world.blame("node7", job_id)
    world.blame("node8", job_id)
    world.woken.clear()
    with capture_logs() as told:
        for _ in range(2):
            assert world.client.post("/api/v1/nodes/local/node7/clear").status_code == 204
    assert [node["name"] for node in items(world, "nodes")] == ["node8"]
    assert [each for each in told if each["event"] == "node cleared"] == 2 * [
        {"event": "node cleared", "log_level": "info", "cluster": "local", "node": "node7", "by": "local"}
    ]
    assert len(world.woken) == 2
    world.blame("node7", run(world))
    assert [node["name"] for node in items(world, "nodes")] == ["node8"], (
        "a late report of a cleared failure does not count"
    )
    world.clock.moment = NOW + timedelta(minutes=11)
    world.blame("node7", run(world))
    assert [(node["name"], node["failures"]) for node in items(world, "nodes")] == [("node7", 1), ("node8", 1)]


@pytest.mark.parametrize("place", ["local/node9", "elsewhere/node7", "local/" + 5000 * "x"])
def test_a_node_without_a_record_cannot_be_cleared(world: World, place: str) -> None:
    world.blame("node7", run(world))
    answer = world.client.post(f"/api/v1/nodes/{place}/clear")
    assert answer.status_code == 404, answer.text
    assert [node["name"] for node in items(world, "nodes")] == ["node7"]


def test_projects_show_their_quotas_and_use(world: World) -> None:
    (quota,) = items(world, "projects")
    assert quota == {"name": "research", "max_jobs": 2, "max_devices": 8, "use": []}
    run(world, project="research", topology={"nodes": "1", "workers_per_node": 2})
    world.submit(project="research")
    run(world, project="other")
    other, research = items(world, "projects")
    assert research["use"] == [{"cluster": "local", "jobs": 1, "devices": 2, "queued": 1}]
    assert (other["name"], other["max_jobs"], other["use"][0]["devices"]) == ("other", None, 1)
