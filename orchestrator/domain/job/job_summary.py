"""What lists show of a job, which needs no parsed spec.

These are tuples because a page creates many. A frozen dataclass of 31 fields takes three times as long to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from trainer.contract.failure import Failure


class AttemptSummary(NamedTuple):
    """What lists show of an attempt."""

    number: int
    state: AttemptState
    nodes: str
    asked: str
    snapshots_sent: int  # Attempt.snapshots_told
    errand_sent: int  # Attempt.errand_told
    failure: Failure | None


class JobSummary(NamedTuple):
    """A job, its newest attempt, and what that attempt last reported. `spec` is the stored document."""

    id: str
    name: str
    project: str
    cluster: str
    priority: int
    labels: Mapping[str, str]
    asked: str  # the nodes that the spec requests
    limits_preemptions: bool  # whether the spec has a budget for preemptions
    spec: Mapping[str, object]
    owner: str | None
    state: JobState
    reason: str
    desired: Desired
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    retries_done: int
    spent: Mapping[str, int]
    attempt: AttemptSummary | None = None
    attempts: int = 0
    newest_snapshot: str | None = None
    phase: str | None = None
    generation: int | None = None
    restarts: int = 0
    shrinks: int = 0
    step: int | None = None
    total_steps: int | None = None
    step_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    world_size: int | None = None


def summarize(job: Job, attempt: Attempt | None = None) -> JobSummary:
    """Summarize a job and its newest attempt, before the attempt has reported anything."""
    spec = job.spec
    return JobSummary(
        id=job.id,
        name=spec.name,
        project=spec.project,
        cluster=spec.cluster,
        priority=spec.priority,
        labels=spec.labels,
        asked=spec.topology.nodes,
        limits_preemptions=spec.supervise.budgets.preemption is not None,
        spec=spec.model_dump(mode="json", by_alias=True),
        owner=job.owner,
        state=job.state,
        reason=job.reason,
        desired=job.desired,
        created_at=job.created_at,
        updated_at=job.updated_at,
        finished_at=job.finished_at,
        retries_done=job.retries_done,
        spent=job.spent,
        attempt=None if attempt is None else _summarize_attempt(attempt),
    )


def _summarize_attempt(attempt: Attempt) -> AttemptSummary:
    return AttemptSummary(
        number=attempt.key.number,
        state=attempt.state,
        nodes=attempt.nodes,
        asked=attempt.asked,
        snapshots_sent=attempt.snapshots_told,
        errand_sent=attempt.errand_told,
        failure=attempt.failure,
    )
