"""Clusters, their queues and nodes, and what projects use of them."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from orchestrator.wire.answers import Answer


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


class PartitionView(Answer):
    """A part of a cluster with a queue of its own. `broken`: nodes that take no jobs, each with the reason."""

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
    detail: str  # where it does not answer: why
    slots: SlotsView
    max_jobs: int | None
    jobs: dict[str, int]  # by state; those that have ended are left out
    lease: LeaseView | None
    partitions: list[PartitionView] = Field(default_factory=list)  # where the cluster tells of them


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
    failures: int  # one power loss is one, however many jobs met it
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
