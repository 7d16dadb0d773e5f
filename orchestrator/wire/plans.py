"""The answer to a plan: what would be launched."""

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
    """The estimated memory of the bundled trainer on each device at the worst moment of a step, in bytes.

    `terms` add up to `total_bytes`. `device_bytes` and `fits` are null if the device is not known. Without a GPU the
    device is a worker's part of its node's memory. `host_bytes` is what offloading keeps in host memory per worker.
    `copies_bytes` is what copies of the state take of each node's memory, 0 without copies.
    """

    strategy: str
    devices: int  # of the smallest group that the topology allows
    parameters: int
    terms: dict[str, int]
    total_bytes: int
    host_bytes: int
    copies_bytes: int = 0
    device_bytes: int | None
    fits: bool | None
    advice: str


class RungView(Answer):
    """One way to train the job and its memory on each device. `fits` is null if the device is not known."""

    name: str
    total_bytes: int
    fits: bool | None


class OutlookView(Answer):
    """Whether the job would start now. `ahead` is the number of jobs that would start before it. `total` and `free` are
    slots, null on a cluster with a queue of its own. The job would avoid `excluded_nodes`, which have failures."""

    admitted: bool
    sentence: str
    ahead: int
    total: int | None
    free: int | None
    excluded_nodes: list[str]


class AgainstView(Answer):
    """How the spec differs from a job, as lines of a unified diff. The job's next attempt would restore `restores`
    (null: the job has no snapshot) and repeat `redo_steps` steps in about `redo_s` seconds (null: not known)."""

    job: str
    state: JobState
    attempt: int | None
    spec_changes: list[str]
    request_changes: list[str]
    restores: str | None
    redo_steps: int | None
    redo_s: float | None


class PlanView(Answer):
    """A dry run. `appdef` is the launch as a torchx AppDef. Nothing is submitted and no port is reserved.

    `rungs` are the ways to train the job, fastest first. `fitting` names the first that fits.
    """

    rendezvous_id: str
    rendezvous_endpoint: str
    replicas: list[ReplicaPlanView]
    native_kind: str
    native_request: str
    appdef: dict[str, Any]
    memory: MemoryView | None = None  # only for the bundled trainer
    rungs: list[RungView] = Field(default_factory=list)
    fitting: str | None = None
    restores: str | None = None  # the snapshot that the job would restore
    outlook: OutlookView | None = None  # null if not known
    against: AgainstView | None = None
    warnings: list[str]
