"""What a job left behind, for readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.observation.observation import Training


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


class HistoryReader(Protocol):
    """What a job left behind. Pages as in JobReader; raises NotFound for an unknown job."""

    def attempts(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[AttemptStanding], str | None]:
        """Oldest first."""

    def events(
        self, job_id: str, *, limit: int, cursor: str | None, newest_first: bool = False
    ) -> tuple[Sequence[StoredEvent], str | None]:
        """In the order of arrival, or against it."""

    def snapshots(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredSnapshot], str | None]:
        """Newest step first."""

    def has_snapshot(self, job_id: str, name: str) -> bool:
        """Whether the job has committed a snapshot of this name that was neither quarantined nor deleted since."""

    def workers(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredWorker], str | None]:
        """Of the newest attempt first, then by replica and local rank."""

    def replicas(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredReplica], str | None]:
        """Of the newest attempt, by replica, then by incarnation."""

    def newest_of_kind(
        self, job_id: str, kind: str, *, limit: int, attempt: int | None = None
    ) -> Sequence[StoredEvent]:
        """Events of one kind, the newest first; of one attempt where it is named."""

    def metrics(
        self, job_id: str, *, since_step: int, points: int, until_step: int | None = None
    ) -> Sequence[MetricPoint]:
        """At most `points` of the steps above `since_step` and not above `until_step`, evenly thinned; the newest is
        always among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Short texts that differ once anything that a reader sees of a job has changed."""

    actions: str  # what was requested, decided and done, and each event
    reports: str  # what the journals of its agents and workers say, each step too
    rests: bool  # nothing more happens to it by itself


class ChangeMarks(Protocol):
    """Cheap looks, for pages that are open all day. Raises StoreUnavailable."""

    def mark(self, job_id: str) -> Mark:
        """Raises NotFound."""

    def losses(self, ends: Mapping[str, int], *, points: int) -> Mapping[str, Sequence[float]]:
        """Of each job up to its last step (`ends`), the losses of about so many steps, oldest first. A job without any
        is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """That a job lived, and whether anything of its status has changed since it was looked at."""

    job_id: str
    updated_at: datetime
    finished_at: datetime | None


class ChronicleReader(Protocol):
    def chronicle(self, job_id: str) -> Chronicle:
        """All that a job's life is read from, at one moment. Raises NotFound, StoreUnavailable."""

    def lived(
        self, *, since: datetime, until: datetime, projects: Collection[str] | None, limit: int
    ) -> Sequence[Lifespan]:
        """Jobs of these projects (None: of every one) that lived between two moments, the newest first. Raises
        StoreUnavailable."""
