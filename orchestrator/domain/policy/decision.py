"""What can be done about a job: a closed set of actions, and the Decision that carries one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from trainer.contract.failure import Failure


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do; the sentence becomes the job's reason."""


@dataclass(frozen=True, slots=True)
class Start:
    """Write down a new attempt of so many nodes, then submit it."""

    nodes: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the attempt that was written down; a start that happened after all makes this one exit by itself."""


@dataclass(frozen=True, slots=True)
class NotePending:
    """Write down that the cluster holds the attempt in a queue of its own."""


@dataclass(frozen=True, slots=True)
class MarkNodes:
    """Enter the nodes that the decision blames into their records."""


@dataclass(frozen=True, slots=True)
class TellAgents:
    """Pass on to the agents what is requested of a running attempt: a snapshot, stacks, a fault."""


@dataclass(frozen=True, slots=True)
class AvoidOnly:
    """Let the attempt, which waits in the cluster's queue, avoid these nodes and no others."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteRunning:
    """Write down what is seen: an agent is alive (`formed`: and the worker group has formed)."""

    formed: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the attempt to end; with `force`, fence it and end whatever is left. `failure`: why, where it is a fault."""

    force: bool
    failure: Failure | None = None
    grows: bool = False  # it makes room for a larger one


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The attempt has ended so; the job then stands at `job_state`."""

    state: AttemptState
    job_state: JobState
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The job stands so from now on, without a live attempt."""

    state: JobState


@dataclass(frozen=True, slots=True)
class BeginRetry:
    """Honour the owner's retry: a fresh account, and back into the queue."""


Action = (
    Wait
    | Start
    | Submit
    | NotePending
    | AvoidOnly
    | NoteRunning
    | MarkNodes
    | TellAgents
    | Stop
    | EndAttempt
    | Finish
    | BeginRetry
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`sentence` is for the job's owner; `look_again_at` None means with the next news or pass.

    `blames`: the nodes in whose record the failure belongs.
    """

    action: Action
    sentence: str
    rule: str = ""
    look_again_at: datetime | None = None
    blames: tuple[str, ...] = ()

    @property
    def settles(self) -> bool:
        """Whether it changes only what is written down, so that another decision may follow at once."""
        return isinstance(self.action, (NotePending, AvoidOnly, NoteRunning, MarkNodes, EndAttempt, Finish, BeginRetry))
