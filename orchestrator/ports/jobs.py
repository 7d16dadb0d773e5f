"""Jobs, for those who submit them and for those who look at them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.specs.spec import JobSpec


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


class JobLookup(Protocol):
    """What commands and intake ask about single jobs. Raises StoreUnavailable."""

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        """What is requested of these jobs; one that does not exist is left out."""

    def sources(self) -> Mapping[str, str]:
        """Of each job that is not at rest and goes on from another one's snapshot, where that is (`snapshot.from`)."""

    def awaiting(self, job_id: str) -> str | None:
        """The first job, by name, that is not at rest and names this one in `after`."""
