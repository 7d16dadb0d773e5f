"""Clusters, their queues and nodes, and the use by projects."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from orchestrator.wire.answers import Answer


class SlotsView(Answer):
    """Slots of a cluster; a worker takes one. `total` and `free` are null if the cluster has a queue of its own or does
    not answer."""

    used: int
    total: int | None
    free: int | None


class LeaseView(Answer):
    """The service process that supervises a cluster. Times are by the database's clock."""

    holder: str
    since: datetime | None
    expires_at: datetime
    expired: bool


class PartitionView(Answer):
    """A part of a cluster with a queue of its own. `broken` has the reason of each node that takes no jobs."""

    name: str
    is_default: bool
    nodes: int
    idle: int
    broken: dict[str, str]
    gpus: dict[str, int]  # by type


class ClusterView(Answer):
    name: str
    kind: str
    answers: bool
    detail: str  # why the cluster does not answer; empty if it does
    slots: SlotsView
    max_jobs: int | None
    jobs: dict[str, int]  # by state, without ended jobs
    lease: LeaseView | None
    partitions: list[PartitionView] = Field(default_factory=list)  # empty if the cluster reports none


class QueuedView(Answer):
    """A queued job, listed in the order in which jobs will start. `reason` says what it waits for."""

    id: str
    name: str
    project: str
    priority: int
    reason: str
    created_at: datetime


class NodeView(Answer):
    """A node with recorded failures."""

    cluster: str
    name: str
    excluded_until: datetime | None  # new attempts avoid the node until then
    failures: int  # a power loss counts once, however many jobs it hit
    last_at: datetime
    last_kind: str
    last_sentence: str
    last_job: str


class UseView(Answer):
    cluster: str
    jobs: int  # jobs that hold slots
    devices: int
    queued: int


class ProjectView(Answer):
    """A project with a quota or with active jobs. The quota applies to each cluster; null means no limit."""

    name: str
    max_jobs: int | None
    max_devices: int | None
    use: list[UseView]
