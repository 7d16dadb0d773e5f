"""What was seen of an attempt: evidence that it lives, evidence that it ended, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.membership import Members
from trainer.contract.exit_record import ExitRecord
from trainer.contract.failure import Failure
from trainer.contract.silence import PhaseTime

# In the evidence of an attempt that waits for something that its cluster lacks.
CAN_NEVER_START = "it can never start"
UNHEARD_AFTER = timedelta(seconds=30)  # agents report every two seconds, even without news


class Liveness(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"  # positive evidence of the end
    UNKNOWN = "unknown"  # no evidence


class Presence(StrEnum):
    """What the cluster knows of an attempt."""

    ABSENT = "absent"  # positive evidence that it was never submitted
    PENDING = "pending"
    RUNNING = "running"
    GONE = "gone"  # it was submitted and has ended
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnd:
    """What a cluster knows of the end of a replica's agent."""

    incarnation: int  # of the agent that ended
    words: str  # a clause, such as "pod train-1-x on n2 was evicted"
    failure: Failure | None = None  # with the cluster's own words; None if it gives no reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSighting:
    replica: int
    liveness: Liveness
    evidence: str  # a clause, such as "process 4711 is gone"
    leftovers: bool = False  # processes of a dead replica still run
    returns: bool = False  # it is dead, and the cluster starts it again under the same number
    node: str | None = None  # where it is or was, if known
    node_unreachable: bool = False  # according to the scheduler
    end: ReplicaEnd | None = None  # of a dead replica, if the cluster counts its agents and knows more than `evidence`


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a backend says of one attempt."""

    key: AttemptKey
    presence: Presence
    evidence: str
    replicas: tuple[ReplicaSighting, ...] = ()
    cause: Failure | None = None  # why it ended according to the cluster: preemption, out of memory, time limit
    nodes: int | None = None  # how many the cluster gave it, if that may be fewer than requested
    pause_reason: str | None = None  # a clause of the cluster, such as "an administrator has suspended it"
    # For a running attempt, the nodes that are free for a larger one. For one that waits for nodes, the nodes with any
    # free resource. None if the cluster cannot say, or the attempt waits for something else.
    spare_nodes: tuple[str, ...] | None = None
    avoids_strictly: bool = False  # it waits, and the cluster will not start it on an avoided node

    @property
    def leftovers(self) -> bool:
        """Whether any process of the attempt still runs, an orphaned worker included."""
        return any(seen.liveness is Liveness.ALIVE or seen.leftovers for seen in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The newest report of one rank. `heard_at` is when it arrived, on the service's clock."""

    rank: int
    replica: int
    generation: int
    phase: str
    step: int | None
    heard_at: datetime


def parse_replicas(evidence: Iterable[Mapping[str, object]]) -> frozenset[int]:
    """Return the replica numbers that events list under "replicas". Anything else in the list is ignored."""
    named = [number for each in evidence if isinstance(listed := each.get("replicas"), list) for number in listed]
    return frozenset(number for number in named if isinstance(number, int) and not isinstance(number, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the attempt's journals add up to.

    `progress_at` is when the newest line of progress arrived, and `heard_at` when the newest report of any agent did,
    on the service's clock. Agents report every few seconds, even without news.
    """

    generation: int | None = None
    world_size: int | None = None  # of the newest generation
    step: int | None = None
    total_steps: int | None = None
    formed_at: datetime | None = None  # when the first generation was journaled
    progress_at: datetime | None = None
    heard_at: datetime | None = None
    phase: str | None = None
    step_s: float | None = None  # seconds of one step, a recent mean
    restarts: int = 0  # in place, after a worker failed
    shrinks: int = 0  # restarts in place after a node was lost
    resized_at: datetime | None = None  # when its number of nodes last changed
    restored: str | None = None  # the snapshot that its newest generation restored
    snapshots: int = 0  # snapshots that this attempt committed
    began_step: int | None = None  # the earliest step that a generation restored, if any
    kept_step: int | None = None  # the step of the newest snapshot that it committed
    kept_at: datetime | None = None  # when it was committed, by the worker's clock
    phase_times: Mapping[str, PhaseTime] = field(default_factory=dict)  # by phase, without warm-up steps

    @property
    def last_heard_at(self) -> datetime | None:
        """When the newest report or line of progress arrived."""
        return max(filter(None, (self.heard_at, self.progress_at)), default=None)

    @property
    def heard_until(self) -> datetime | None:
        """The time until which the newest report shows that agents reach the service. None without a report."""
        return None if self.heard_at is None else self.heard_at + UNHEARD_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that is known of a live attempt at one time. An exit record outweighs all other evidence of its replica.

    `heard_since` is since when the service has listened without a gap. Earlier reports may have been missed. If reports
    are the only source and none arrives (`unheard`), it is now, because the network may be down.
    """

    sighting: Sighting
    training: Training
    exits: Mapping[int, ExitRecord]
    heard_since: datetime
    unheard: bool = False
    listened_until: datetime | None = None  # when it becomes unheard unless an agent reports; None means never
    ranks: tuple[RankReport, ...] = ()  # read only if a hang is suspected
    missed: frozenset[int] = (
        frozenset()
    )  # replicas that their peers lost; read like `ranks`, or for an unreachable node
    members: Members = field(default_factory=Members)  # read only of an elastic group that has lost a replica
