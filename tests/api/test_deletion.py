"""Deleting the record of a job over HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.wire.job_requests import RetryRequest
from tests.api.conftest import World
from tests.api.running import RUNNING, run
from tests.builders import make_batch, make_journal_event, make_progress


def ended(world: World, state: JobState = JobState.SUCCEEDED, **fields: object) -> str:
    """An ended job with rows in every table."""
    job_id = world.submit(labels={"team": "vision"}, **fields)
    world.advance(job_id, *RUNNING)
    attempt = world.start(job_id, state=AttemptState.RUNNING)
    committed = make_journal_event("snapshot.committed", evidence={"name": "step-00000003-a1-g1", "step": 3})
    world.journals.ingest(
        [make_batch(job_id, progress=[(10, make_progress(3))], events=[(5, committed)])], arrived_at=world.clock.now()
    )
    world.apply(world.job(job_id), attempt.to(AttemptState.SUCCEEDED, reason="over", now=world.clock.now()))
    world.advance(job_id, state)
    return job_id


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_jobs_record_is_deleted_with_all_that_belongs_to_it(world: World, state: JobState) -> None:
    kept, gone = ended(world), ended(world, state)
    answer = world.client.delete(f"/api/v1/jobs/{gone}")
    assert answer.status_code == 200
    told = answer.json()
    assert (told["job_id"], told["state"], told["deleted_by"], told["files_due"]) == (gone, state, "local", False)
    for what in ("", "/events", "/attempts", "/snapshots", "/workers", "/why"):
        assert world.client.get(f"/api/v1/jobs/{gone}{what}").status_code == 404
        assert world.client.get(f"/api/v1/jobs/{kept}{what}").status_code == 200
    assert [job["id"] for job in world.client.get("/api/v1/jobs").json()["items"]] == [kept]
    assert world.client.get("/api/v1/jobs?label=team%3Dvision").json()["items"][0]["id"] == kept


def test_a_repeated_deletion_gives_the_same_answer(world: World) -> None:
    job_id = ended(world)
    first = world.client.delete(f"/api/v1/jobs/{job_id}").json()
    again = world.client.delete(f"/api/v1/jobs/{job_id}?snapshots=delete")
    assert (again.status_code, again.json()) == (200, first)


def test_a_job_that_has_not_ended_cannot_be_deleted(world: World) -> None:
    job_id = run(world)
    refused = world.client.delete(f"/api/v1/jobs/{job_id}")
    assert (refused.status_code, "is RUNNING; cancel it" in refused.json()["detail"]) == (409, True)
    assert world.client.get(f"/api/v1/jobs/{job_id}").status_code == 200


def test_a_job_that_another_one_waits_for_cannot_be_deleted(world: World) -> None:
    job_id = ended(world)
    waiting = world.submit(after=[job_id])
    refused = world.client.delete(f"/api/v1/jobs/{job_id}")
    assert (refused.status_code, f"job {waiting} waits for job {job_id}" in refused.json()["detail"]) == (409, True)
    world.advance(waiting, JobState.CANCELLED)
    assert world.client.delete(f"/api/v1/jobs/{job_id}").status_code == 200


def test_snapshots_that_another_job_needs_are_not_deleted(world: World) -> None:
    job_id = ended(world)
    folder = world.root / job_id / "snapshots" / "step-00000003-a1-g1"
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text("{}")
    other = world.submit(snapshot={"from": str(folder)})
    refused = world.client.delete(f"/api/v1/jobs/{job_id}?snapshots=delete")
    assert refused.status_code == 409
    assert f"job {other} continues from a snapshot of job {job_id}" in refused.json()["detail"]
    world.advance(other, *RUNNING, JobState.FAILED)
    answer = world.client.delete(f"/api/v1/jobs/{job_id}?snapshots=delete")
    assert (answer.status_code, answer.json()["files_due"]) == (200, True)


def test_snapshots_in_an_object_store_are_deleted_there(world: World) -> None:
    job_id = ended(world, snapshot={"dir": "s3://bucket/runs"})
    refused = world.client.delete(f"/api/v1/jobs/{job_id}?snapshots=delete")
    assert (refused.status_code, "an object store" in refused.json()["detail"]) == (409, True)
    assert world.client.delete(f"/api/v1/jobs/{job_id}?snapshots=keep").status_code == 200


def test_a_deletion_shows_where_the_files_are(world: World) -> None:
    for place, elsewhere in (
        (None, []),
        ("/snapshots", ["/snapshots/{}"]),
        ("s3://bucket/runs", ["s3://bucket/runs/{}"]),
    ):
        job_id = ended(world, snapshot={"dir": place})
        told = world.client.delete(f"/api/v1/jobs/{job_id}").json()
        assert told["folders"] == [str(world.root / job_id), *(folder.format(job_id) for folder in elsewhere)]


@pytest.mark.parametrize("query", ["snapshots=all", "snapshots="])
def test_an_invalid_value_of_snapshots_deletes_nothing(world: World, query: str) -> None:
    job_id = ended(world)
    assert world.client.delete(f"/api/v1/jobs/{job_id}?{query}").status_code == 422
    assert world.client.get(f"/api/v1/jobs/{job_id}").status_code == 200


def test_a_deleted_job_keeps_the_access_rules_of_its_project(closed: World) -> None:
    alice, bob = closed.give("default=submitter", name="alice"), closed.give("default=submitter", name="bob")
    viewer, stranger = closed.give("default=viewer", name="vera"), closed.give("vision=admin", name="eve")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(), headers=alice).json()["id"]
    closed.advance(job_id, JobState.CANCELLED)

    def delete(headers: dict[str, str]) -> int:
        return closed.client.delete(f"/api/v1/jobs/{job_id}", headers=headers).status_code

    assert [delete(one) for one in (viewer, bob, stranger)] == [403, 403, 404]
    assert delete(alice) == 200
    assert [delete(one) for one in (viewer, bob, stranger)] == [403, 403, 404], "a deleted job keeps its access rules"
    assert closed.client.get(f"/api/v1/jobs/{job_id}", headers=viewer).status_code == 404


def test_a_concurrent_retry_prevents_the_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = ended(world, JobState.FAILED)
    deletions = world.services.deletions
    store = deletions._store
    stored = store.delete

    def retried_meanwhile(deletion: object, *, seen: int) -> bool:
        monkeypatch.setattr(store, "delete", stored)
        world.services.commands.retry(job_id, RetryRequest())
        return stored(deletion, seen=seen)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "delete", retried_meanwhile)
    assert world.client.delete(f"/api/v1/jobs/{job_id}").status_code == 409
    assert replace(world.job(job_id)).desired.retry_number == 1
