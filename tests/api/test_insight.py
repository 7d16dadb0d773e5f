"""What became of a job and of its time, over HTTP."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.job import JobState
from tests.api.conftest import World
from trainer.contract.failure import Failure, FailureKind


def test_a_job_that_waits_has_spent_its_life_in_the_queue(world: World) -> None:
    job_id = world.submit(topology={"nodes": "1", "workers_per_node": 2})
    world.clock.moment += timedelta(seconds=30)
    found = world.client.get(f"/api/v1/jobs/{job_id}/goodput").json()
    assert (found["bins"]["queue"], found["device_seconds"], found["goodput"]) == (60.0, 60.0, None)
    assert [stretch["bin"] for stretch in found["stretches"]] == ["queue"]


def test_a_failed_job_says_why_with_the_last_lines_of_the_rank_that_failed(world: World) -> None:
    job_id = world.submit()
    failure = Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 28] No space left on device", rank=0)
    now = world.clock.now()
    world.start(job_id, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=failure)
    log = world.root / job_id / "attempts/1/replica-0/1/g1/local-0/log"
    log.parent.mkdir(parents=True)
    log.write_text("loading\nOSError: [Errno 28] No space left on device\n")
    world.advance(job_id, JobState.STARTING, JobState.FAILED, reason="the budget is spent")
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()
    assert found["verdict"].startswith("the budget is spent. The first cause: storage, rank 0: OSError")
    assert found["cause"]["failure"]["kind"] == "storage"
    assert found["cause"]["last_lines"][-1:] == ["OSError: [Errno 28] No space left on device"]
    assert found["remedy"]["name"] == "disk full"


def test_an_unknown_job_has_no_account(world: World) -> None:
    for what in ("why", "goodput"):
        assert world.client.get(f"/api/v1/jobs/nobody/{what}").status_code == 404
