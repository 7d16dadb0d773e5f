"""What the store hands to its callers beside jobs, attempts and events: plain values, one for each kind of row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.observation import Training

# Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    state: JobState | None = None
    project: str | None = None
    cluster: str | None = None
    label: tuple[str, str] | None = None
    query: str | None = None  # free text in id, name and reason
    projects: Collection[str] | None = None  # none but these; None: every one


class JobOrder(StrEnum):
    """Orders that a list of any length can be walked in: each is an index's. Among equals, by submission."""

    NEWEST = "newest"
    OLDEST = "oldest"
    UPDATED = "updated"  # the ones that changed longest ago first, as the column's name says
    UPDATED_DOWN = "-updated"
    NAME = "name"
    NAME_DOWN = "-name"
    STATE = "state"
    STATE_DOWN = "-state"
    PROJECT = "project"
    PROJECT_DOWN = "-project"
    CLUSTER = "cluster"
    CLUSTER_DOWN = "-cluster"
    PRIORITY = "priority"
    PRIORITY_DOWN = "-priority"  # the highest first


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCourse:
    """As much of a job as says where its logs are and whether there will be more of them."""

    project: str
    cluster: str
    newest: int | None  # the number of the newest attempt
    rests: bool  # it has ended and no retry is requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """That a job lived, and whether anything of its status has changed since it was looked at."""

    job_id: str
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job at rest for good, unless its owner wants more of it."""

    job_id: str
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMark:
    """Short texts that differ once anything that a reader sees of a job has changed."""

    actions: str  # what was requested, decided and done, and each event
    reports: str  # what the journals of its agents and workers report, each step too
    rests: bool  # nothing more happens to it by itself


# What a job left behind


@dataclass(frozen=True, slots=True)
class AttemptStanding:
    """An attempt as readers see it, with what its journals told."""

    attempt: Attempt
    training: Training


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    id: int  # rises over the whole store, so that it serves as a cursor
    job_id: str
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    name: str
    step: int
    attempt: int
    generation: int
    state: str  # committed, quarantined, deleted
    size_bytes: int | None
    world_size: int | None  # of the group that took it
    at: datetime
    verified_at: datetime | None  # when all of its bytes were last compared with its manifest; None: not yet


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorker:
    """The newest word of one worker (replica, local rank) of an attempt."""

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
    utilisation: float | None  # of its device, 0 to 1
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReplica:
    """One life of a replica's agent in the newest attempt, by its journal. `name`: of its node; None: it told none."""

    attempt: int
    replica: int
    incarnation: int
    name: str | None
    pid: int | None
    ranks: Sequence[int]  # of which its workers have told
    ended: str | None  # the outcome of its exit record


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """What one optimizer step measured; a step done again replaces its point. `at` is the worker's clock."""

    step: int
    attempt: int
    generation: int
    at: datetime
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """That something happened to a job, for whoever follows."""

    id: int  # of the event: it rises over the whole store
    job_id: str
    project: str
    kind: str
    at: datetime


# Clusters, secrets, webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAges:
    """What has stood longest on a cluster."""

    cluster: str
    queued_since: datetime | None = None  # the oldest QUEUED job was submitted; one that was retried does not count
    snapshot_at: datetime | None = None  # of the newest snapshots of the RUNNING jobs that have one, the oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret as it is stored: `sealed` is what a key opens."""

    project: str
    name: str
    sealed: str = field(repr=False)
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhook:
    """A webhook that was made by request: `sealed` holds its URL and the key that signs."""

    webhook: Webhook
    host: str
    sealed: str = field(repr=False)
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event that is owed to one webhook, claimed for its `tries`-th try."""

    id: int
    webhook: str
    message_id: str  # the same over all tries
    tries: int
    age_s: float  # since the event was written
    job: Mapping[str, str]  # id, name, project, cluster
    event: StoredEvent
