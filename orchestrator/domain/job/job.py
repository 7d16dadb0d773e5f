"""A job: what was asked for, what is requested now, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.errors import InvalidTransition
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.chaos import Fault
from trainer.contract.failure import Failure


class JobState(StrEnum):
    QUEUED = "QUEUED"  # waits for admission; the reason says for what
    STARTING = "STARTING"  # an attempt was submitted, no worker has formed a group yet
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"  # between attempts
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def holds_slots(self) -> bool:
        """A recovering job keeps its place: its neighbours must not take it between two attempts."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {
            JobState.STARTING,  # admitted, first attempt submitted
            JobState.SUSPENDED,  # its owner holds it back
            JobState.CANCELLED,  # cancelled before anything ran
            JobState.FAILED,  # can never start here
        }
    ),
    JobState.STARTING: frozenset(
        {
            JobState.RUNNING,  # the worker group formed
            JobState.RECOVERING,  # the attempt ended before that
            JobState.SUSPENDED,
            JobState.SUCCEEDED,  # it ended well while nobody looked
            JobState.FAILED,  # its budget was spent at once
            JobState.CANCELLED,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.RECOVERING,  # the attempt was lost or failed, or makes room for one of another size
            JobState.SUSPENDED,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.RECOVERING: frozenset(
        {
            JobState.STARTING,  # the next attempt was submitted
            JobState.QUEUED,  # its owner asked for another attempt
            JobState.SUSPENDED,
            JobState.FAILED,  # the budget is spent
            JobState.CANCELLED,
        }
    ),
    JobState.SUSPENDED: frozenset(
        {
            JobState.QUEUED,  # its owner resumed it, or asked for another attempt
            JobState.CANCELLED,
        }
    ),
    # The owner may ask for another attempt of an ended job; nothing else leaves these states.
    JobState.SUCCEEDED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedStacks:
    """Where the ranks of one attempt stand; `number` is that of the request, `rank` None means all of them."""

    number: int
    attempt: int
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChaos:
    """A fault for one attempt; `number` is that of the request. `rank` and `replica` None: the agents choose."""

    number: int
    attempt: int
    fault: Fault
    rank: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What the API requests of a job; the supervisor never writes it.

    `number` rises with every request, a changed spec included: whoever writes one names the number that it has seen.
    `retry_number` counts the owner's retries: the supervisor acts while its own count (`Job.retries_done`) is behind.
    `snapshot_number` counts the snapshots asked for: it is passed on to the agents, who compare it with their own.
    Of stacks and of chaos the newest request stands here; it is for the attempt that it names and for no later one.
    """

    number: int = 0
    cancelled: bool = False
    suspended: bool = False
    retry_number: int = 0
    restore_from: str | None = None  # a snapshot's name: the upper bound of the next restore
    snapshot_number: int = 0
    stacks: RequestedStacks | None = None
    chaos: RequestedChaos | None = None

    def errand(self, attempt: int) -> int:
        """The number of the newest request for stacks or chaos of this attempt; 0: there is none."""
        requests = (self.stacks, self.chaos)
        return max(
            (request.number for request in requests if request is not None and request.attempt == attempt), default=0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. Times are aware UTC. `reason` is one sentence for the job's owner."""

    id: str
    spec: JobSpec
    state: JobState
    reason: str
    desired: Desired
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    owner: str | None = None  # who submitted it; None: nobody was asked
    retries_done: int = 0
    spent: dict[str, int] = field(default_factory=dict)  # failures by budget class since the last retry
    fruitless: int = 0  # attempts in a row that ended before their first completed step: what back-off grows with
    retry_at: datetime | None = None  # while RECOVERING: not before
    recovering_since: datetime | None = None  # when the last attempt was seen to end, until the next one trains
    farthest_step: int | None = None  # that any attempt since the last retry has reached; -1: workers, no step
    kept_step: int | None = None  # of the newest snapshot that any attempt since the last retry has committed
    kept_s: float = 0.0  # of training that such snapshots have kept, since what was spent was refunded last
    last_failure: Failure | None = None  # of the application: the same one again ends the job

    def to(self, state: JobState, *, reason: str, now: datetime) -> Job:
        """Change the state along an edge of TRANSITIONS (or only the reason). Raises InvalidTransition."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"job {self.id}: {self.state} -> {state}")
        finished_at = (self.finished_at or now) if state.terminal else None
        return replace(self, state=state, reason=reason, updated_at=now, finished_at=finished_at)
