"""What would be launched."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.domain.job.job import JobState
from orchestrator.wire.answers import Answer


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


class RungView(Answer):
    """One way to train the job, with what it takes of each device; `fits` null where the device is not known."""

    name: str
    total_bytes: int
    fits: bool | None


class OutlookView(Answer):
    """What the queue would say of the job now. `ahead`: jobs that would start before it. `total` and `free` are slots,
    null on a cluster that queues by itself; `excluded_nodes` have a record and would be avoided."""

    admitted: bool
    sentence: str
    ahead: int
    total: int | None
    free: int | None
    excluded_nodes: list[str]


class AgainstView(Answer):
    """What the spec would change of a job, as lines of a unified diff. The job's next attempt would restore `restores`
    (null: it has no snapshot) and do `redo_steps` again, which takes about `redo_s`; null where it is not known."""

    job: str
    state: JobState
    attempt: int | None
    spec_changes: list[str]
    request_changes: list[str]
    restores: str | None
    redo_steps: int | None
    redo_s: float | None


class PlanView(Answer):
    """A dry run. `appdef` is the launch as a torchx AppDef; nothing was submitted and no port is reserved yet.

    `rungs` are the ways to train it, from the fastest on; `fitting` names the first that fits.
    """

    rendezvous_id: str
    rendezvous_endpoint: str
    replicas: list[ReplicaPlanView]
    native_kind: str
    native_request: str
    appdef: dict[str, Any]
    memory: MemoryView | None = None  # of the bundled trainer alone
    rungs: list[RungView] = Field(default_factory=list)
    fitting: str | None = None
    restores: str | None = None  # the snapshot that it would begin from
    outlook: OutlookView | None = None  # null where nobody can tell
    against: AgainstView | None = None
    warnings: list[str]
