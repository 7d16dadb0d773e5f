"""Conditions for the deletion of a job's record and files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.job import Job
from trainer.contract.location import is_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What is kept of a deleted job. `files_due` means that its files must be removed and may still exist."""

    job_id: str
    name: str
    project: str
    cluster: str
    owner: str | None
    state: str  # the job's last state
    created_at: datetime
    deleted_at: datetime
    deleted_by: str
    snapshot_dir: str | None  # the spec's snapshot.dir; None means that its snapshots are in its folder
    files_due: bool


def require_deletable(
    job: Job, *, files: bool, relied_on_by: str | None, awaited_by: str | None, shares_files: bool
) -> None:
    """Raises Conflict if the job cannot be deleted. With `files`, its folder and its snapshots are deleted too."""
    if not job.state.terminal:
        raise Conflict(f"job {job.id} is {job.state}; cancel it and wait for its end before you delete it")
    if job.retry_requested:
        raise Conflict(f"job {job.id} is about to start another attempt; cancel the retry before you delete the job")
    if awaited_by is not None:
        raise Conflict(f"job {awaited_by} waits for job {job.id} (`after`); it would wait forever")
    if not files:
        return
    if relied_on_by is not None:
        raise Conflict(
            f"job {relied_on_by} continues from a snapshot of job {job.id} (`snapshot.from`); keep the snapshots"
        )
    place = job.spec.snapshot.dir
    if place is not None and (is_url(place) or not shares_files):
        where = "an object store" if is_url(place) else f"{place} on nodes that share no files with the service"
        raise Conflict(
            f"the snapshots of job {job.id} are in {where}: delete them there, and the record with snapshots=keep"
        )


def build_deletion(job: Job, *, by: str, at: datetime, files: bool) -> Deletion:
    spec = job.spec
    return Deletion(
        job_id=job.id,
        name=spec.name,
        project=spec.project,
        cluster=spec.cluster,
        owner=job.owner,
        state=job.state.value,
        created_at=job.created_at,
        deleted_at=at,
        deleted_by=by,
        snapshot_dir=spec.snapshot.dir,
        files_due=files,
    )
