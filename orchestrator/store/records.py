"""Values that the store returns, other than the domain's jobs, attempts and events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.queueing.admission import Claimant

# Jobs


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that is not terminal, with its newest attempt, and as a claimant of its cluster."""

    job: Job
    attempt: Attempt | None
    claimant: Claimant


LOOKED_AT = 20_000  # jobs that one page of a search looks at; the next page continues after them


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    state: JobState | None = None
    project: str | None = None
    cluster: str | None = None
    label: tuple[str, str] | None = None
    query: str | None = None  # text to find in id, name and reason
    projects: Collection[str] | None = None  # only these; None means all


class JobOrder(StrEnum):
    """Sort orders of the list of jobs. Each has an index. Equal rows are sorted by submission."""

    NEWEST = "newest"
    OLDEST = "oldest"
    UPDATED = "updated"  # the least recently changed first
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
    PRIORITY_DOWN = "-priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """What is needed to find a job's logs and to know whether they are complete."""

    project: str
    cluster: str
    newest: int | None  # the number of the newest attempt
    at_rest: bool  # it has ended and no retry is requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """The times of a job. A changed `updated_at` means that its status changed."""

    job_id: str
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, with no retry requested."""

    job_id: str
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """Some of the jobs that were looked at. `last` is the key (end, id) of the last one, None if there was none."""

    jobs: Sequence[EndedJob]
    last: tuple[datetime, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMark:
    """Short texts that differ once anything visible of a job has changed."""

    actions: str  # changes with the job's status, requests and events
    reports: str  # changes with each report of its agents and workers, also with each step
    at_rest: bool  # the job has ended and no retry is requested


# The history of a job


@dataclass(frozen=True, slots=True)
class AttemptStanding:
    """An attempt with its training summary."""

    attempt: Attempt
    training: Training


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    id: int  # rises over all jobs, so it can serve as a cursor
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
    world_size: int | None  # of the group that saved it
    at: datetime
    verified_at: datetime | None  # when all its bytes were last compared with the manifest; None means never


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorker:
    """The newest report of one worker (replica, local rank) of an attempt."""

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
    utilisation: float | None  # the device's, from 0 to 1
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReplica:
    """One incarnation of an agent in the newest attempt, from its journal."""

    attempt: int
    replica: int
    incarnation: int
    name: str | None  # the node's name; None if not reported
    pid: int | None
    ranks: Sequence[int]  # the ranks that its workers have reported
    ended: str | None  # the outcome in its exit record


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """The metrics of one optimizer step. A repeated step replaces its point. `at` is the worker's clock."""

    step: int
    attempt: int
    generation: int
    at: datetime
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNotice:
    """An event without its content, for followers of all jobs."""

    id: int  # the event's; rises over all jobs
    job_id: str
    project: str
    kind: str
    at: datetime


# Clusters, secrets, webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAges:
    """The longest waits on a cluster."""

    cluster: str
    queued_since: datetime | None = None  # when the oldest QUEUED job was submitted; retried jobs do not count
    snapshot_at: datetime | None = None  # the oldest among the newest snapshots of the RUNNING jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret as it is stored. `sealed` is encrypted."""

    project: str
    name: str
    sealed: str = field(repr=False)
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhook:
    """A webhook that was created through the API. `sealed` holds its URL and its signing key, encrypted."""

    webhook: Webhook
    host: str
    sealed: str = field(repr=False)
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event for one webhook, claimed for its `tries`-th try."""

    id: int
    webhook: str
    message_id: str  # the same for each try
    tries: int
    age_s: float  # since the event was written
    job: Mapping[str, str]  # id, name, project, cluster
    event: StoredEvent
