"""Jobs, for those who submit them and for those who look at them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.specs.spec import JobSpec


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


class JobStore(Protocol):
    """The store as the API's write side sees it: jobs and requests."""

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        """Insert a job. A key belongs to the job's project and owner: two owners, or two projects, may use one key for
        two jobs, and a job without an owner repeats none. The same key with the same digest returns the job of the
        first call, unchanged; with another digest raises Conflict. Safe against concurrent calls with one key."""

    def repeated(self, project: str, owner: str, idempotency_key: str, digest: str) -> Job | None:
        """The job that this owner's key stored before, if it did. Raises Conflict where the digest was another."""

    def get(self, job_id: str) -> Job:
        """Raises NotFound."""

    def record_request(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> bool:
        """Write what is desired (and a patched spec) without touching status, where no other request came in between:
        `desired.number` is one above the stored one. False where it is not: nothing is written. Raises NotFound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStanding:
    """A job as readers see it, with what its newest attempt's journals told."""

    job: Job
    attempt: Attempt | None
    training: Training
    attempts: int
    world_size: int | None
    loss: float | None
    tokens_per_s: float | None
    newest_snapshot: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What is requested of a job, and of which attempt."""

    desired: Desired
    newest: int | None  # the number of the newest attempt
    stopping: bool  # whether that one was asked to end


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCourse:
    """As much of a job as says where its logs are and whether there will be more of them."""

    project: str
    cluster: str
    newest: int | None  # the number of the newest attempt
    rests: bool  # it has ended and no retry is requested


class CourseReader(Protocol):
    """Asked each second for each log that is followed: one question, and no spec is parsed for it."""

    def course(self, job_id: str) -> JobCourse:
        """Raises NotFound."""


class JobReader(Protocol):
    """Pages of jobs. A page is (rows, cursor of the next page or None); a foreign cursor raises Refused."""

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, order: JobOrder = JobOrder.NEWEST
    ) -> tuple[Sequence[JobStanding], str | None]:
        """Pages stay stable while jobs are added."""

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        """What is requested of these jobs; one that does not exist is left out."""

    def sources(self) -> Mapping[str, str]:
        """Of each job that is not at rest and goes on from another one's snapshot, where that is (`snapshot.from`)."""

    def awaiting(self, job_id: str) -> str | None:
        """The first job, by name, that is not at rest and names this one in `after`."""

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        """How many jobs there are in each state; a state without jobs may be left out. None: of every project."""
