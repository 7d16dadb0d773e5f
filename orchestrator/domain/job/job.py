"""A job: its spec, the requests to it, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.errors import InvalidTransition
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.chaos import Fault
from trainer.contract.failure import Failure

# The reason of a job that runs undisturbed.
WORKERS_RUNNING = "the workers are running"


class JobState(StrEnum):
    QUEUED = "QUEUED"  # waits for admission; the reason says why
    STARTING = "STARTING"  # an attempt was submitted, and its worker group has not formed yet
    RUNNING = "RUNNING"  # its workers are running
    RECOVERING = "RECOVERING"  # an attempt ended, and the next one has not been submitted yet
    SUSPENDED = "SUSPENDED"  # it waits until its owner resumes it
    SUCCEEDED = "SUCCEEDED"  # every worker succeeded
    FAILED = "FAILED"  # another attempt cannot help, or its budget is spent
    CANCELLED = "CANCELLED"  # its owner cancelled it

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def holds_slots(self) -> bool:
        """A recovering job keeps its slots, so that no other job takes them between two attempts."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {
            JobState.STARTING,  # admitted and submitted
            JobState.SUSPENDED,  # suspended before it started
            JobState.CANCELLED,  # cancelled before it started
            JobState.SUCCEEDED,  # the retry of a finished job was cancelled before it started
            JobState.FAILED,  # it can never start
        }
    ),
    JobState.STARTING: frozenset(
        {
            JobState.RUNNING,  # the worker group formed
            JobState.RECOVERING,  # the attempt ended before the group formed
            JobState.SUSPENDED,
            JobState.SUCCEEDED,  # it succeeded between two passes
            JobState.FAILED,  # its budget is spent
            JobState.CANCELLED,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.RECOVERING,  # the attempt failed or was lost, or ends to change its size
            JobState.SUSPENDED,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.RECOVERING: frozenset(
        {
            JobState.STARTING,  # the next attempt was submitted
            JobState.QUEUED,  # its owner requested a retry
            JobState.SUSPENDED,
            JobState.FAILED,  # its budget is spent
            JobState.CANCELLED,
        }
    ),
    JobState.SUSPENDED: frozenset(
        {
            JobState.QUEUED,  # its owner resumed it or requested a retry
            JobState.CANCELLED,
            JobState.SUCCEEDED,  # the retry of a finished job was cancelled
        }
    ),
    # A retry is the only way out of these states.
    JobState.SUCCEEDED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedStacks:
    """A request for the stacks of one attempt. `number` is the number of the request; `rank` None means all ranks."""

    number: int
    attempt: int
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChaos:
    """A request for a fault in one attempt. `number` is the number of the request.

    If `rank` and `replica` are None, the agents choose.
    """

    number: int
    attempt: int
    fault: Fault
    rank: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What the owner requests of a job. The API writes it; the supervisor never does.

    `number` rises with every request, including one that changes the spec, so that concurrent requests are noticed.
    `retry_number` counts retries. The supervisor starts one while `Job.retries_done` is lower.
    `snapshot_number` counts requested snapshots. Agents take one while their own count is lower.
    `stacks` and `chaos` hold only the newest request. Each is for the attempt that it names, not for a later one.
    """

    number: int = 0
    cancelled: bool = False
    suspended: bool = False
    retry_number: int = 0
    restore_from: str | None = None  # the name of the newest snapshot that the next attempt may restore
    snapshot_number: int = 0
    stacks: RequestedStacks | None = None
    chaos: RequestedChaos | None = None

    def errand(self, attempt: int) -> int:
        """Return the number of the newest request for stacks or chaos of this attempt. 0 if there is none."""
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
    owner: str | None = None  # who submitted it; None means that the caller had no name
    retries_done: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)  # failures by budget class since the last retry
    fruitless: int = 0  # failed attempts in a row without a step and of under 60 s; the back-off grows with it
    retry_at: datetime | None = None  # while RECOVERING: when the next attempt may start
    recovering_since: datetime | None = None  # when the last attempt ended; None once the next one trains
    farthest_step: int | None = None  # since the last retry; -1 means that workers started but completed no step
    kept_step: int | None = None  # the step of the newest snapshot committed since the last retry
    kept_s: float = 0.0  # seconds of training that snapshots have kept since the last refund
    last_failure: Failure | None = None  # the application's; if it repeats, the job ends

    @property
    def retry_requested(self) -> bool:
        """Whether a retry is requested that has not started."""
        return self.desired.retry_number > self.retries_done

    @property
    def at_rest(self) -> bool:
        """Whether the job has ended and no retry is requested."""
        return self.state.terminal and not self.retry_requested

    def to(self, state: JobState, *, reason: str, now: datetime) -> Job:
        """Change the state along an edge of TRANSITIONS, or only the reason. Raises InvalidTransition."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"job {self.id}: {self.state} -> {state}")
        finished_at = (self.finished_at or now) if state.terminal else None
        return replace(self, state=state, reason=reason, updated_at=now, finished_at=finished_at)
