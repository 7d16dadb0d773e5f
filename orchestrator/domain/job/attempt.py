"""An attempt: one submission of a job to its cluster, numbered from 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from orchestrator.domain.errors import InvalidTransition
from trainer.contract.failure import Failure


class AttemptState(StrEnum):
    INTENDED = "INTENDED"  # written down; it may or may not have been submitted
    SUBMITTED = "SUBMITTED"  # the cluster has accepted it
    PENDING = "PENDING"  # it waits in the cluster's own queue
    RUNNING = "RUNNING"  # an agent is alive
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  # it ended by itself, with a cause
    PREEMPTED = "PREEMPTED"  # the cluster took its nodes
    LOST = "LOST"  # it is gone without an exit record
    CANCELLED = "CANCELLED"  # the service ended it

    @property
    def terminal(self) -> bool:
        return self in _ENDS


_ENDS = frozenset(
    {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.PREEMPTED, AttemptState.LOST, AttemptState.CANCELLED}
)

TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    # A live attempt may end between two passes, hence _ENDS in every row.
    AttemptState.INTENDED: _ENDS | {AttemptState.SUBMITTED, AttemptState.PENDING, AttemptState.RUNNING},
    AttemptState.SUBMITTED: _ENDS | {AttemptState.PENDING, AttemptState.RUNNING},
    AttemptState.PENDING: _ENDS | {AttemptState.RUNNING},
    AttemptState.RUNNING: _ENDS,
    **{end: frozenset() for end in _ENDS},
}


class AttemptKey(NamedTuple):
    """Identifies an attempt everywhere, even before a scheduler has given it a handle.

    A tuple, because a pass looks up many of them, and a tuple hashes faster than a dataclass.
    """

    job_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.job_id}-a{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. `rendezvous_id` is `<job>-a<number>-<nonce>`; `port` is reserved while the attempt lives."""

    key: AttemptKey
    state: AttemptState
    reason: str
    nonce: str
    port: int
    nodes: str  # "MIN:MAX" or one number; what it got may be less than `asked`
    asked: str  # the spec's topology.nodes at its creation; a later change of the spec applies to the next attempt
    created_at: datetime
    workers_per_node: int | None = None  # None means as in the spec
    tried_at: datetime | None = None  # when its newest submission began; its outcome is unknown for a while
    not_permitted: str | None = None  # the cluster's message, if it has permitted no submission so far
    excluded_nodes: tuple[str, ...] = ()  # nodes that it avoids
    restore_from: str | None = None
    handle: str | None = None
    started_at: datetime | None = None  # when an agent was first seen alive
    stopping_since: datetime | None = None  # when it was first asked to end
    ended_at: datetime | None = None
    failure: Failure | None = None
    marked_nodes: tuple[str, ...] = ()  # nodes whose record has its failure
    snapshots_told: int = 0  # the Desired.snapshot_number that its agents have been sent
    errand_told: int = 0  # the newest Desired.errand that its agents have been sent

    @property
    def min_nodes(self) -> int:
        return parse_nodes(self.nodes)[0]

    @property
    def max_nodes(self) -> int:
        return parse_nodes(self.nodes)[1]

    @property
    def most_asked(self) -> int:
        """The most nodes that the spec asked for."""
        return parse_nodes(self.asked)[1]

    @property
    def rendezvous_id(self) -> str:
        return f"{self.key}-{self.nonce}"

    def to(self, state: AttemptState, *, reason: str, now: datetime, failure: Failure | None = None) -> Attempt:
        """Change the state along an edge of TRANSITIONS, or only the reason. Raises InvalidTransition."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"attempt {self.key}: {self.state} -> {state}")
        return replace(
            self,
            state=state,
            reason=reason,
            started_at=(self.started_at or now) if state is AttemptState.RUNNING else self.started_at,
            ended_at=now if state.terminal else None,
            failure=failure or self.failure,
        )


def parse_nodes(nodes: str) -> tuple[int, int]:
    """Return the minimum and maximum of "MIN:MAX", or of a single number."""
    return int(nodes.partition(":")[0]), int(nodes.rpartition(":")[2])
