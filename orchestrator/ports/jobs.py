"""The store as commands and intake see it: jobs and requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.dependents import Needs
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.specs.spec import JobSpec


class JobStore(Protocol):
    """The write side: adds jobs and records requests."""

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        """Insert a job and its event. The same key with the same digest returns the job of the first call, unchanged;
        with another digest, raises Conflict. A key counts within one project and owner, and not for a job without an
        owner. Safe for concurrent calls with one key."""

    def repeated(self, project: str, owner: str, idempotency_key: str, digest: str) -> Job | None:
        """Return the job that was stored with this key, if any. Raises Conflict if its digest differs."""

    def get(self, job_id: str) -> Job:
        """Raises NotFound."""

    def record_request(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> bool:
        """Write what is desired, and a changed spec, but no status. Returns False and writes nothing if another request
        came in between: `desired.number` must be one above the stored number. Raises NotFound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStanding:
    """A job as readers see it, with the training summary of its newest attempt."""

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
    """The requests of a job, and its newest attempt."""

    desired: Desired
    newest: int | None  # the number of the newest attempt
    stopping: bool  # whether that attempt was asked to end, or has ended


class JobLookup(Protocol):
    """The read side of commands and intake. Raises StoreUnavailable."""

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        """Return the requests of these jobs. A job that does not exist is left out."""

    def dependents(self, job_id: str) -> Sequence[Needs]:
        """Return what jobs that are not at rest need: all jobs that need this one, and maybe others."""
