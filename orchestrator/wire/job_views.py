"""Jobs, their attempts and their events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import Field

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.answers import Answer
from trainer.contract.failure import name_cause


class FailureView(Answer):
    kind: str
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    traceback: str | None = None

    @property
    def kind_name(self) -> str:
        return name_cause(self.kind, self.signal)


class _JobFields(Answer):
    id: str
    name: str
    project: str
    cluster: str
    state: JobState
    reason: str
    cancelling: bool  # a cancel request is recorded and the job has not ended yet
    retrying: bool = False  # another attempt is requested and has not begun yet
    suspended: bool = False  # a suspension is requested, until a resume
    suspending: bool = False  # a suspension is requested and the job has not stopped yet
    pending: list[str] = Field(default_factory=list)  # the verbs of requests that are recorded and not carried out yet
    priority: int
    labels: dict[str, str]
    owner: str | None = None  # who submitted the job
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    attempt: int | None
    attempts: int
    nodes: str | None = None  # number of nodes of the newest attempt
    asked: str = "1"  # number or range of nodes that the spec requests now
    phase: str | None = None  # the newest attempt's
    spent: dict[str, int] = Field(default_factory=dict)  # failures by budget, including restarts in place
    preemptions: int = 0  # since the last retry or refund; also in `spent` if the spec limits them
    generation: int | None
    restarts: int  # restarts in place in the newest attempt
    step: int | None
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    world_size: int | None
    eta_s: float | None
    newest_snapshot: str | None
    failure: FailureView | None

    @property
    def ended(self) -> bool:
        """Whether the job is in a terminal state and no retry is pending."""
        return self.state.terminal and not self.retrying


class ListedJobView(_JobFields):
    """The same JSON as JobView. The spec is the stored document, which is not parsed."""

    spec: dict[str, object]


class JobView(_JobFields):
    """A job. `reason` is one sentence for its owner; times are UTC."""

    spec: JobSpec

    @property
    def takes_snapshots(self) -> bool:
        """Whether the job is known to take snapshots. Scripts that can, report their steps."""
        return self.spec.run.trainer is not None or self.newest_snapshot is not None or self.step is not None


class SubmittedView(JobView):
    """The answer to a submission. Each item of `warnings` is a sentence on a field that has no effect on this job."""

    warnings: list[str] = Field(default_factory=list)


class DeletionView(Answer):
    """A job whose record was deleted. If `files_due`, its files will be deleted too, and may still exist. `folders` has
    their paths on the service's machine; it is incomplete if the job's cluster is no longer configured."""

    job_id: str
    name: str
    project: str
    cluster: str
    owner: str | None
    state: JobState  # the last one
    created_at: datetime
    deleted_at: datetime
    deleted_by: str
    files_due: bool
    folders: list[str] = Field(default_factory=list)


class AttemptView(Answer):
    number: int
    state: AttemptState
    reason: str
    rendezvous_id: str
    port: int
    handle: str | None
    nodes: str | None = None  # number of nodes of this attempt
    asked: str | None = None  # number or range of nodes that the spec requested when the attempt was created
    excluded_nodes: list[str] = Field(default_factory=list)  # nodes that the attempt had to avoid
    restore_from: str | None  # the snapshot that the job's owner requested
    restored: str | None = None  # the snapshot that the newest generation continued from
    step: int | None = None  # the last reported step
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    failure: FailureView | None


class EventView(Answer):
    id: int
    job_id: str
    at: datetime
    kind: str
    sentence: str
    attempt: int | None
    generation: int | None
    evidence: dict[str, Any]
    actor: str | None = None  # who requested it; null if the service or an agent acted by itself
    replica: int | None = None  # whose agent or worker reported the event; null if the service wrote it


class JobChange(Answer):
    """The `data` of a stream's event: the job that changed."""

    job_id: str
    kind: str  # as in EventView


def name_replicas(job: JobView, events: Iterable[EventView]) -> bool:
    """Whether to show which replica reported an event: the job has, or had, more than one."""
    return job.spec.topology.max_nodes > 1 or any(event.replica for event in events)
