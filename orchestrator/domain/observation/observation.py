"""What was seen of an attempt, three-valued: positive evidence either way, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract.exit_record import ExitRecord
from trainer.contract.failure import Failure
from trainer.contract.silence import PhaseTime

# In the evidence of an attempt that waits for something that its cluster does not have.
CAN_NEVER_START = "it can never start"
UNHEARD_AFTER = timedelta(seconds=30)  # agents report every two seconds, with news or without


class Liveness(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"  # positive evidence of the end
    UNKNOWN = "unknown"  # evidence of nothing


class Presence(StrEnum):
    """What the cluster knows of an attempt's submission."""

    ABSENT = "absent"  # positive evidence that it was never submitted
    PENDING = "pending"
    RUNNING = "running"
    GONE = "gone"  # it was there and has ended
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSighting:
    replica: int
    liveness: Liveness
    evidence: str  # a clause, such as "process 4711 is gone"
    leftovers: bool = False  # processes of a dead replica that still run
    node: str | None = None  # where it is or was, as far as anybody knows
    node_unreachable: bool = False  # by the scheduler's word


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a backend says of one attempt."""

    key: AttemptKey
    presence: Presence
    evidence: str
    replicas: tuple[ReplicaSighting, ...] = ()
    cause: Failure | None = None  # the cluster's own word on why it ended: preempted, out of memory, its time over
    nodes: int | None = None  # how many the cluster gave it, where that may be fewer than were asked for
    pause_reason: str | None = None  # the cluster's word, a clause, such as: an administrator has suspended it
    # Of a running attempt: the nodes that are free for a larger one. Of one that waits for nodes: the nodes with any
    # free resource. None: the cluster cannot tell, or the attempt waits for something else.
    spare_nodes: tuple[str, ...] | None = None
    avoids_strictly: bool = False  # it waits, and the cluster never starts it on a node that it avoids

    @property
    def leftovers(self) -> bool:
        """Whether any process of the attempt still runs, an orphaned worker included."""
        return any(seen.liveness is Liveness.ALIVE or seen.leftovers for seen in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWord:
    """The newest word of one rank. `heard_at` is its arrival here, on our clock."""

    rank: int
    replica: int
    generation: int
    phase: str
    step: int | None
    heard_at: datetime


def parse_replicas(evidence: Iterable[Mapping[str, object]]) -> frozenset[int]:
    """The replica numbers that events list under "replicas". Anything else in the list is ignored."""
    named = [number for each in evidence if isinstance(listed := each.get("replicas"), list) for number in listed]
    return frozenset(number for number in named if isinstance(number, int) and not isinstance(number, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the attempt's journals told so far. `progress_at` is the newest line's arrival here, on our clock;
    `heard_at` that of the newest report of any of its agents, who report every few seconds, also without news."""

    generation: int | None = None
    step: int | None = None
    total_steps: int | None = None
    formed_at: datetime | None = None  # when the first generation was journalled
    progress_at: datetime | None = None
    heard_at: datetime | None = None
    phase: str | None = None
    step_s: float | None = None  # seconds of one step, a recent mean
    restarts: int = 0  # in place, after a worker failed
    shrinks: int = 0  # in place, after a node was lost
    resized_at: datetime | None = None  # when it last went on with another number of nodes
    restored: str | None = None  # the snapshot that its newest generation continued from
    snapshots: int = 0  # committed by this attempt
    began_step: int | None = None  # the earliest step that any of its generations restored; None: none did
    kept_step: int | None = None  # of the newest snapshot that it committed
    kept_at: datetime | None = None  # when it was committed, by the worker's clock
    phase_times: Mapping[str, PhaseTime] = field(default_factory=dict)  # by phase, without warm-up steps

    @property
    def last_heard_at(self) -> datetime | None:
        """When any word of it came: a report, or a line of its journals."""
        return max(filter(None, (self.heard_at, self.progress_at)), default=None)

    def heard_lately(self, now: datetime) -> bool:
        """Whether a report came lately. One agent's shows that agents reach us."""
        return self.heard_at is not None and now - self.heard_at <= UNHEARD_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that is known of a live attempt at one moment. `exits` by replica are the truth where they exist.

    `heard_since`: from when on we have listened without a gap; what was silent before may have spoken unheard. Where
    an attempt is known by its agents' reports alone and none comes (`unheard`), that is now: the road may be closed.
    """

    sighting: Sighting
    training: Training
    exits: Mapping[int, ExitRecord]
    heard_since: datetime
    unheard: bool = False
    ranks: tuple[RankWord, ...] = ()  # looked up only where a hang is suspected
    missed: frozenset[int] = (
        frozenset()
    )  # replicas that their peers have lost; looked up like `ranks`, or where a node is unreachable
