"""HTTP bodies of `/api/v1`, shared by the service and its clients.

Answers may gain fields: a client ignores those that it does not know. Requests by people refuse unknown fields;
reports, which agents of other versions send, ignore them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

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
    suspended: bool = False  # its owner wishes that it rests until it is resumed
    suspending: bool = False  # so it is wished, and it does not rest yet
    pending: list[str] = Field(default_factory=list)  # wishes that are recorded and not carried out yet, by their verb
    priority: int
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    attempt: int | None
    attempts: int
    nodes: str | None = None  # what the newest attempt was given
    asked: str = "1"  # what the spec asks for now
    phase: str | None = None  # of the newest attempt
    spent: dict[str, int] = Field(default_factory=dict)  # of spec.supervise.budgets, restarts in place included
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
    nodes: str | None = None  # what it was given
    asked: str | None = None  # what the spec asked for when it was made
    excluded_nodes: list[str] = Field(default_factory=list)  # which it had to avoid
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


class MemoryView(Answer):
    """What the bundled trainer takes of each device at the worst moment of a step, in bytes, by formulas.

    `terms` add up to `total_bytes`. `device_bytes` and `fits` are null where the device is not known; without a GPU the
    device is a worker's part of its node's memory. `host_bytes` is what offloading keeps there for each worker.
    """

    strategy: str
    devices: int  # of the smallest group that the topology allows
    parameters: int
    terms: dict[str, int]
    total_bytes: int
    host_bytes: int
    device_bytes: int | None
    fits: bool | None
    advice: str


class PlanView(Answer):
    """A dry run. `appdef` is the launch as a torchx AppDef; nothing was submitted and no port is reserved yet."""

    rendezvous_id: str
    rendezvous_endpoint: str
    replicas: list[ReplicaPlanView]
    native_kind: str
    native_request: str
    appdef: dict[str, Any]
    memory: MemoryView | None = None  # of the bundled trainer alone
    warnings: list[str]


class RetryRequest(Request):
    """`restore_from` names a snapshot of the job that bounds the restore; `patch` merges into the spec (RFC 7396)."""

    restore_from: str | None = Field(default=None, max_length=255)
    patch: dict[str, Any] | None = None


class ScaleRequest(Request):
    """`nodes` as in a spec's topology: a number, or a range as "2:8"."""

    nodes: StrictStr | StrictInt


class SlotsView(Answer):
    """One slot for each worker. `total` and `free` are null where the cluster queues by itself or does not answer."""

    used: int
    total: int | None
    free: int | None


class LeaseView(Answer):
    """Which service process supervises a cluster. Times are the database's."""

    holder: str
    since: datetime | None
    expires_at: datetime
    expired: bool


class ClusterView(Answer):
    name: str
    kind: str
    answers: bool
    detail: str  # where it does not answer: why
    slots: SlotsView
    max_jobs: int | None
    jobs: dict[str, int]  # by state; those that have ended are left out
    lease: LeaseView | None


class QueuedView(Answer):
    """A job in the order in which the queue is to start; `reason` says what it waits for."""

    id: str
    name: str
    project: str
    priority: int
    reason: str
    created_at: datetime


class NodeView(Answer):
    """A node that has failures in its record."""

    cluster: str
    name: str
    excluded_until: datetime | None  # new attempts avoid it until then
    failures: int
    last_at: datetime
    last_kind: str
    last_sentence: str
    last_job: str


class UseView(Answer):
    cluster: str
    jobs: int  # that hold a place
    devices: int
    queued: int


class ProjectView(Answer):
    """A project that has a quota, or jobs that are not at rest. The quota holds on each cluster; null is no limit."""

    name: str
    max_jobs: int | None
    max_devices: int | None
    use: list[UseView]


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
    snapshot: int = 0
    number: int = 0


class ReportAnswer(Answer):
    desired: DesiredView


class Health(Answer):
    status: str
    version: str
    detail: str = ""


class WebhookView(Answer):
    """A webhook as it is configured; its URL and its secret are not told."""

    name: str
    host: str
    events: list[str]  # patterns
    all_jobs: bool
