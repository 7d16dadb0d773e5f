"""HTTP bodies of `/api/v1`, shared by the service and its clients.

Answers may gain fields: a client ignores those that it does not know. Requests by people refuse unknown fields;
reports, which agents of other versions send, ignore them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.job import JobState
from orchestrator.domain.spec import JobSpec

Item = TypeVar("Item")


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", from_attributes=True)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Page(Answer, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = None


class FieldError(Answer):
    pointer: str  # RFC 6901
    detail: str


class Problem(Answer):
    """RFC 9457. `type` is a relative reference that stays the same for one kind of problem."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = Field(default_factory=list)


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
    cancelling: bool  # a wish to cancel is recorded and the job has not ended yet
    retrying: bool = False  # another attempt is wished and has not begun yet
    priority: int
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    attempt: int | None
    attempts: int
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


class AttemptView(Answer):
    number: int
    state: AttemptState
    reason: str
    rendezvous_id: str
    port: int
    handle: str | None
    restore_from: str | None  # what its owner asked for
    restored: str | None = None  # what its newest generation continued from
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


class SnapshotView(Answer):
    name: str
    step: int
    attempt: int
    generation: int
    state: str
    size_bytes: int | None
    at: datetime


class WorkerView(Answer):
    attempt: int
    replica: int
    local_rank: int
    rank: int
    world_size: int
    generation: int
    pid: int
    phase: str
    step: int | None
    memory_bytes: int | None
    at: datetime


class MetricsView(Answer):
    """Series by name; the values of `steps`, `at` and each series belong together by position."""

    steps: list[int]
    at: list[datetime]
    attempts: list[int]
    generations: list[int]
    series: dict[str, list[float | None]]


class ReplicaPlanView(Answer):
    replica: int
    command: list[str]
    env: dict[str, str]


class PlanView(Answer):
    """A dry run. `appdef` is the launch as a torchx AppDef; nothing was submitted and no port is reserved yet."""

    rendezvous_id: str
    rendezvous_endpoint: str
    replicas: list[ReplicaPlanView]
    native_kind: str
    native_request: str
    appdef: dict[str, Any]
    warnings: list[str]


class RetryRequest(Request):
    """`restore_from` names a snapshot of the job that bounds the restore; `patch` merges into the spec (RFC 7396)."""

    restore_from: str | None = Field(default=None, max_length=255)
    patch: dict[str, Any] | None = None


class ReportBody(BaseModel):
    """New journal lines of one replica. Offsets are bytes in the journal files: sending lines twice changes nothing."""

    model_config = ConfigDict(extra="ignore")

    version: int = 1
    job_id: str = Field(max_length=128)
    attempt: int = Field(ge=1, le=2**31 - 1)
    replica: int = Field(ge=0, le=2**31 - 1)
    incarnation: int = Field(ge=1, le=2**31 - 1)
    progress_from: int = Field(default=0, ge=0, le=2**62)
    progress: list[str] = Field(default_factory=list, max_length=10_000)
    progress_to: int = Field(default=0, ge=0, le=2**62)
    events_from: int = Field(default=0, ge=0, le=2**62)
    events: list[str] = Field(default_factory=list, max_length=10_000)
    events_to: int = Field(default=0, ge=0, le=2**62)
    exit_record: dict[str, Any] | None = None


class DesiredView(Answer):
    state: Literal["run", "stop"] = "run"


class ReportAnswer(Answer):
    desired: DesiredView


class Health(Answer):
    status: str
    version: str
    detail: str = ""
