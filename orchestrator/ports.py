"""The doors between the core and the world. Small Protocols; adapters implement them, bootstrap alone names those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.attempt import Attempt, AttemptKey
from orchestrator.domain.event import Event
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.launch import LaunchPlan, NativeRequest
from orchestrator.domain.observation import Sighting, Training
from orchestrator.domain.spec import JobSpec
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.progress import Progress


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, aware UTC."""


class Backend(Protocol):
    """A cluster. Every method may block for seconds and raises BackendUnavailable when the cluster does not answer."""

    def render(self, plan: LaunchPlan) -> NativeRequest:
        """What would be submitted. Pure."""

    def submit(self, plan: LaunchPlan) -> str:
        """Start the attempt; return the cluster's handle. Of two starts of one attempt the second exits by itself."""

    def observe(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        """Look at all the attempts in one go. One that the backend cannot judge is UNKNOWN, never left out."""

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Ask the attempt to end, or with `force` end it and all that it left. Idempotent; an ended one is no error."""

    def slots(self) -> int | None:
        """How many workers fit on the cluster altogether; None where the cluster itself queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """A job that is not at rest, with its newest attempt and what that attempt's journals told."""

    job: Job
    attempt: Attempt | None
    training: Training
    exits: Mapping[int, ExitRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision's effect on the store: written in one transaction, or not at all."""

    job: Job
    attempt: Attempt | None
    events: Sequence[Event]


class SupervisorStore(Protocol):
    """The store as the supervisor sees it. Writes status only, never `desired`. Raises StoreUnavailable."""

    def supervised(self, cluster: str) -> Sequence[Supervised]:
        """Every job of the cluster that is not at rest: not terminal, or terminal with a retry wished."""

    def apply(self, change: Change) -> None:
        """Write status of job and attempt (inserted where new) and the events. An ended attempt frees its port."""

    def note(self, job_id: str, reason: str, now: datetime) -> None:
        """Write only why the job stands still. An unknown job is no error."""

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        """Reserve for the attempt a port that no other live attempt of the cluster holds; the next above `after`,
        around the end. Idempotent per attempt. Raises Refused when all are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    state: JobState | None = None
    project: str | None = None
    cluster: str | None = None
    label: tuple[str, str] | None = None
    query: str | None = None  # free text in id, name and reason


class JobStore(Protocol):
    """The store as the API's write side sees it: jobs and wishes."""

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        """Insert a job. The same key with the same digest returns the job of the first call, unchanged; with another
        digest raises Conflict. Safe against concurrent calls with one key."""

    def repeated(self, project: str, idempotency_key: str, digest: str) -> Job | None:
        """The job that this key stored before, if it did. Raises Conflict where it did so with another digest."""

    def get(self, job_id: str) -> Job:
        """Raises NotFound."""

    def wish(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> None:
        """Write what is desired (and a patched spec) without touching status. Raises NotFound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalBatch:
    """New lines of one replica's journals. Offsets are bytes.

    A part that begins before what the store has is cut; one that begins beyond it is left out, since the lines between
    are still to come by another road. A journal that was seen `cut` is counted from its beginning again.
    """

    key: AttemptKey
    replica: int
    incarnation: int
    progress: Sequence[tuple[int, Progress]]  # (offset behind the line, line)
    progress_to: int
    events: Sequence[tuple[int, JournalEvent]]
    events_to: int
    exit_record: ExitRecord | None
    progress_from: int = 0
    events_from: int = 0
    progress_cut: bool = False
    events_cut: bool = False


@dataclass(frozen=True, slots=True)
class JournalOffsets:
    progress: int = 0
    events: int = 0
    exited: bool = False


class JournalStore(Protocol):
    """The store as intake sees it."""

    def offsets(self, key: AttemptKey) -> Mapping[tuple[int, int], JournalOffsets]:
        """What is stored already, by (replica, incarnation)."""

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> None:
        """Store batches in one transaction, each line once however often and by whatever road it comes: progress into
        workers and metrics (the last writer of a step wins), events, snapshots, exit records."""


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
    at: datetime


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
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """What one optimizer step measured; a step done again replaces its point. `at` is the worker's clock."""

    step: int
    attempt: int
    generation: int
    at: datetime
    values: Mapping[str, float]


class JobReader(Protocol):
    """Pages of jobs. A page is (rows, cursor of the next page or None); a foreign cursor raises Refused."""

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, newest_first: bool = True
    ) -> tuple[Sequence[JobStanding], str | None]:
        """Jobs by creation time. Pages stay stable while jobs are added."""

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""

    def count_by_state(self) -> Mapping[JobState, int]:
        """How many jobs there are in each state; a state without jobs may be left out."""


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

    def workers(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredWorker], str | None]:
        """Of the newest attempt first, then by replica and local rank."""

    def metrics(self, job_id: str, *, since_step: int, points: int) -> Sequence[MetricPoint]:
        """At most `points` of the steps above `since_step`, evenly thinned; the newest is always among them."""
