"""The doors between the core and the world. Small Protocols; adapters implement them, bootstrap alone names those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.admission import Claimant
from orchestrator.domain.attempt import Attempt, AttemptKey
from orchestrator.domain.event import Event
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.launch import LaunchPlan, NativeRequest
from orchestrator.domain.lease import Lease, LeaseStanding
from orchestrator.domain.node import NodeFailure
from orchestrator.domain.observation import RankWord, Sighting, Training
from orchestrator.domain.spec import JobSpec
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.launch import DesiredDocument
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


class RunDirectories(Protocol):
    """The run directories of a cluster's jobs, as the supervisor writes them. Each raises OSError; each is idempotent,
    so that the next pass repeats what failed."""

    def fence(self, job_id: str, attempt: int) -> None:
        """From now on nothing that an attempt before this one commits counts."""

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        """Tell the attempt's agents what is wished of it."""

    def withdraw(self, job_id: str, attempt: int) -> bool:
        """Let no agent begin the attempt any more, also one of a submission that is still to come. False where one has
        begun it."""


class Journals(Protocol):
    """What agents leave behind, read for the supervisor."""

    def collect(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, str]:
        """Store what the attempts told since the last call; of those that cannot be read, says why. Raises
        StoreUnavailable."""


class LeaseStore(Protocol):
    """Who supervises which cluster. Times are the store's own, so that the clocks of the services do not matter."""

    def acquire(self, cluster: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Take the cluster for `ttl_s` where nobody holds it or its holder's time is over; else None.

        The token is higher than every one before. The holder itself gets its lease again with a new token.
        """

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Hold on for `ttl_s` from now. False when another one has it or the time was over: it is lost for good."""

    def release(self, lease: Lease) -> None:
        """Give it up at once. A lease that is lost already is no error."""

    def leases(self) -> Sequence[LeaseStanding]:
        """Every cluster that was ever leased."""


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
    node_failures: Sequence[NodeFailure] = ()


class SupervisorStore(Protocol):
    """The store as the holder of a lease sees it. Writes status only, never `desired`.

    Every write is refused with LeaseLost, and changes nothing, once another one holds the lease. Raises
    StoreUnavailable.
    """

    def live(self, cluster: str) -> Sequence[AttemptKey]:
        """The live attempts of the cluster."""

    def supervised(self, cluster: str) -> Sequence[Supervised]:
        """Every job of the cluster that is not at rest: not terminal, or terminal with a retry wished."""

    def apply(self, change: Change) -> None:
        """Write status of job and attempt (inserted where new), the marks of nodes (each attempt marks a node once) and
        the events. An ended attempt frees its port; it is never written again: InvalidTransition."""

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        """Write only why these jobs stand still. An unknown one is no error. Many are more than one transaction."""

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        """How these jobs stand; one that does not exist is left out."""

    def ranks(self, key: AttemptKey) -> Sequence[RankWord]:
        """The newest word of every rank of the attempt."""

    def node_failures(self, cluster: str, *, since: datetime) -> Sequence[NodeFailure]:
        """What stands in the records of the cluster's nodes."""

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

    def wish(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> bool:
        """Write what is desired (and a patched spec) without touching status, where no other wish came in between:
        `desired.number` is one above the stored one. False where it is not: nothing is written. Raises NotFound."""


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

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """What is stored already of these attempts, by (replica, incarnation); nothing stored: left out."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """What is wished of a job, and of which attempt."""

    desired: Desired
    newest: int | None  # the number of the newest attempt
    stopping: bool  # whether that one was asked to end


class JobReader(Protocol):
    """Pages of jobs. A page is (rows, cursor of the next page or None); a foreign cursor raises Refused."""

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, newest_first: bool = True
    ) -> tuple[Sequence[JobStanding], str | None]:
        """Jobs by creation time. Pages stay stable while jobs are added."""

    def standing(self, job_id: str) -> JobStanding:
        """Raises NotFound."""

    def wished(self, job_ids: Collection[str]) -> Mapping[str, Wished]:
        """What is wished of these jobs; one that does not exist is left out."""

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


class ClusterReader(Protocol):
    """What the clusters hold. Raises StoreUnavailable."""

    def claimants(self, cluster: str) -> Sequence[Claimant]:
        """The cluster's jobs that are not terminal, each with its newest attempt; the suspended ones included."""

    def node_failures(self, *, since: datetime) -> Sequence[NodeFailure]:
        """What stands in the records of the nodes of every cluster."""


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


class OutboxStore(Protocol):
    """The store as the outbox sees it. Times are the store's own. Raises StoreUnavailable."""

    def claim(self, webhook: str, *, limit: int, hold_s: float) -> Sequence[Delivery]:
        """Deliveries that are due; nobody else gets them for `hold_s`, then they are due again.

        Of a job only the earliest that is owed, unless that one has failed for ten minutes.
        """

    def delivered(self, delivery: Delivery) -> None:
        """It is owed no more."""

    def failed(self, delivery: Delivery, error: str, *, retry_in_s: float | None) -> None:
        """Owed again later; None: given up. One that was claimed again since is left alone."""

    def oldest_due_s(self, webhook: str) -> float | None:
        """The age of the oldest that is due now; None: nothing is."""

    def sweep(self, *, delivered_s: float, owed_s: float) -> int:
        """Forget what was delivered longer ago than `delivered_s`, and what was not delivered within `owed_s`."""
