"""When a job can be deleted, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.deletion import Deletion, build_deletion, require_deletable
from orchestrator.domain.job.job import Desired, Job, JobState
from tests.unit.situations import NOW, a_job, a_spec, ago

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def require(job: Job, **fields: Any) -> None:
    nobody: dict[str, Any] = {"files": True, "relied_on_by": None, "awaited_by": None, "shares_files": True}
    require_deletable(job, **{**nobody, **fields})


@pytest.mark.parametrize("state", list(JobState))
def test_only_ended_jobs_are_deleted(state: JobState) -> None:
    if state in ENDED:
        require(a_job(state))
        require(a_job(state, desired=Desired(retry_number=2), retries_done=2))
        return
    with pytest.raises(Conflict, match=f"is {state}; cancel it"):
        require(a_job(state))


def test_a_job_with_a_pending_retry_or_a_waiting_job_is_not_deleted() -> None:
    with pytest.raises(Conflict, match="about to start another attempt"):
        require(a_job(JobState.FAILED, desired=Desired(retry_number=3), retries_done=2))
    with pytest.raises(Conflict, match="job b waits for job train-abc"):
        require(a_job(JobState.FAILED), awaited_by="b", files=False)


def test_snapshots_that_are_needed_or_out_of_reach_are_not_deleted() -> None:
    relied: dict[str, Any] = {"relied_on_by": "b"}
    require(a_job(JobState.FAILED), **relied, files=False)
    with pytest.raises(Conflict, match="job b continues from a snapshot of job train-abc"):
        require(a_job(JobState.FAILED), **relied)
    remote = a_job(JobState.FAILED, spec=a_spec(snapshot={"dir": "s3://bucket/x"}))
    require(remote, files=False)
    with pytest.raises(Conflict, match="are in an object store: delete them there"):
        require(remote)
    apart = a_job(JobState.FAILED, spec=a_spec(snapshot={"dir": "/scratch"}))
    require(apart)
    require(apart, shares_files=False, files=False)
    with pytest.raises(Conflict, match="are in /scratch on nodes that share no files with the service"):
        require(apart, shares_files=False)
    require(a_job(JobState.FAILED), shares_files=False)


def test_a_deletion_keeps_the_owner_and_who_deleted_the_job() -> None:
    spec = a_spec(snapshot={"dir": "/scratch"}, project="research", cluster="lab")
    job = a_job(JobState.CANCELLED, spec=spec, owner="alice")
    assert build_deletion(job, by="bob", at=NOW, files=True) == Deletion(
        job_id="train-abc",
        name="train",
        project="research",
        cluster="lab",
        owner="alice",
        state="CANCELLED",
        created_at=ago(100),
        deleted_at=NOW,
        deleted_by="bob",
        snapshot_dir="/scratch",
        files_due=True,
    )
