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


class FailureView(Answer):
    kind: str
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    traceback: str | None = None


class JobView(Answer):
    """A job. `reason` is one sentence for its owner; times are UTC."""

    id: str
    name: str
    project: str
    cluster: str
    state: JobState
    reason: str
    cancelling: bool  # a request to cancel is recorded and the job has not ended yet
    retrying: bool = False  # another attempt is requested and has not begun yet
    suspended: bool = False  # its owner requests that it rests until it is resumed
    suspending: bool = False  # so it is requested, and it does not rest yet
    pending: list[str] = Field(
        default_factory=list
    )  # requests that are recorded and not carried out yet, by their verb
    priority: int
    labels: dict[str, str]
    owner: str | None = None  # who submitted it
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    attempt: int | None
    attempts: int
    nodes: str | None = None  # what the newest attempt was given
    asked: str = "1"  # what the spec asks for now
    phase: str | None = None  # of the newest attempt
    spent: dict[str, int] = Field(default_factory=dict)  # of spec.supervise.budgets, restarts in place included
    preemptions: int = 0  # that ended an attempt, since the last retry or refund; spent where the spec limits them
    generation: int | None
    restarts: int  # in place, in the newest attempt
    step: int | None
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    world_size: int | None
    eta_s: float | None
    newest_snapshot: str | None
    failure: FailureView | None
    spec: JobSpec

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state.terminal and not self.retrying


class SubmittedView(JobView):
    """The answer to a submission. Each of `warnings` is a sentence on a field that has no effect on the job."""

    warnings: list[str] = Field(default_factory=list)


class DeletionView(Answer):
    """A job whose record was deleted. `files_due`: its files are to go too, and may still be there. `folders`: where
    they are, as the service sees them; its own is missing where its cluster is no longer configured."""

    job_id: str
    name: str
    project: str
    cluster: str
    owner: str | None
    state: JobState  # its last
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
    nodes: str | None = None  # what it was given
    asked: str | None = None  # what the spec asked for when it was made
    excluded_nodes: list[str] = Field(default_factory=list)  # which it had to avoid
    restore_from: str | None  # what its owner asked for
    restored: str | None = None  # what its newest generation continued from
    step: int | None = None  # the last one that it told of
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
    actor: str | None = None  # who asked for it; null: nobody, the service or an agent did it
    replica: int | None = None  # of the attempt, whose agent or worker told it; null: the service did


class JobChange(Answer):
    """The `data` of a stream's event: something happened to this job."""

    job_id: str
    kind: str  # as of EventView


def name_replicas(job: JobView, events: Iterable[EventView]) -> bool:
    """Whether it is to be said whose events these are: the job has more than one replica, or had."""
    return job.spec.topology.max_nodes > 1 or any(event.replica for event in events)
