"""The actions that a rule can decide on, and the Decision that carries one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.lost_replica import LostReplica
from orchestrator.domain.observation.membership import Return
from trainer.contract.failure import Failure


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing. The sentence becomes the job's reason."""


@dataclass(frozen=True, slots=True)
class Start:
    """Store a new attempt, then submit it."""

    nodes: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the stored attempt. If an earlier submission starts after all, one of the two exits."""


@dataclass(frozen=True, slots=True)
class NotePending:
    """Record that the attempt waits in the cluster's own queue."""


@dataclass(frozen=True, slots=True)
class MarkNodes:
    """Add the failure to the records of the nodes that the decision blames."""


@dataclass(frozen=True, slots=True)
class NoteMembers:
    """Record which replicas the group has lost, and which have rejoined it."""

    lost: tuple[LostReplica, ...]
    returns: tuple[Return, ...]


@dataclass(frozen=True, slots=True)
class TellAgents:
    """Send the requests for a snapshot, stacks or a fault to the agents."""


@dataclass(frozen=True, slots=True)
class AvoidOnly:
    """Change the nodes that an attempt in the cluster's queue avoids."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteRunning:
    """Record that an agent is alive, and whether the worker group has `formed`."""

    formed: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the attempt to end. With `force`, fence it and kill its processes. `failure` is the reason, if it failed."""

    force: bool
    failure: Failure | None = None
    grows: bool = False  # a larger attempt follows


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """End the attempt in `state` and set the job to `job_state`."""

    state: AttemptState
    job_state: JobState
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Set the state of a job without a live attempt."""

    state: JobState


@dataclass(frozen=True, slots=True)
class BeginRetry:
    """Queue the job again with full budgets, because its owner requested a retry."""


Action = (
    Wait
    | Start
    | Submit
    | NotePending
    | AvoidOnly
    | NoteRunning
    | MarkNodes
    | NoteMembers
    | TellAgents
    | Stop
    | EndAttempt
    | Finish
    | BeginRetry
)

_SETTLES = (NotePending, AvoidOnly, NoteRunning, MarkNodes, NoteMembers, EndAttempt, Finish, BeginRetry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`sentence` is for the job's owner. `look_again_at` None means at the next report or pass.

    `blames` are the nodes whose records get the failure.
    """

    action: Action
    sentence: str
    rule: str = ""
    look_again_at: datetime | None = None
    blames: tuple[str, ...] = ()

    @property
    def settles(self) -> bool:
        """Whether the action changes only the store, so that another decision may follow at once."""
        return isinstance(self.action, _SETTLES)
