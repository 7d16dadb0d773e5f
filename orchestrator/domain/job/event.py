"""Events: the append-only history of a job, each with a sentence for its owner and the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class EventKind(StrEnum):
    """Kinds that the service writes. The kinds of agents and workers are in trainer.contract.exit_record.EventKind."""

    JOB_SUBMITTED = "job.submitted"
    JOB_STATE = "job.state"
    CANCEL_REQUESTED = "cancel.requested"
    SUSPEND_REQUESTED = "suspend.requested"
    RESUME_REQUESTED = "resume.requested"
    RETRY_REQUESTED = "retry.requested"
    SCALE_REQUESTED = "scale.requested"
    SNAPSHOT_REQUESTED = "snapshot.requested"
    STACKS_REQUESTED = "stacks.requested"
    CHAOS_REQUESTED = "chaos.requested"
    ATTEMPT_STATE = "attempt.state"
    RECOVERED = "recovery.attempt"  # the workers of a new attempt started; has the seconds since the last attempt ended
    GREW_BACK = "recovery.grown"  # an attempt ends to make room for a larger one
    NODE_MARKED = "node.marked"
    REPLICA_LOST = "replica.lost"  # the group of a running attempt goes on without it; says what ended its agent
    REPLICA_REJOINED = "replica.rejoined"  # its next agent has formed a group with the others
    REMOVED = "retention.removed"  # files or records of an ended job were removed
    FILE_BROKEN = "file.broken"  # a file in the job's folder cannot be parsed; reported once
    LIMIT_REACHED = "limit.reached"  # a limit on what is stored of an attempt or a job; reported once
    FIRST_STEP = "step.first"  # an attempt completed its first step; only for listeners in the service, never stored


_LARGEST = 1e8  # the largest credible number of seconds, steps or workers
_OURS = frozenset(kind.value for kind in EventKind)
REPLICA = "replica"  # the key of the replica's number in the evidence of events from agents and workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `at` is when it happened, which may be long before it arrived."""

    at: datetime
    kind: str
    sentence: str
    attempt: int | None = None
    generation: int | None = None
    evidence: dict[str, object] = field(default_factory=dict)
    actor: str | None = None  # who requested it; None means that the service or an agent did it

    def number(self, name: str) -> float | None:
        """Return the named number of the evidence. None unless it is a number from 0 to _LARGEST.

        Agents of any version write evidence, and anyone may write into a run directory.
        """
        value = self.evidence.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if 0 <= value <= _LARGEST else None

    @property
    def replica(self) -> int | None:
        """The replica whose agent or worker wrote the event; None for the service or if it is not known."""
        replica = self.evidence.get(REPLICA)
        if not isinstance(replica, int) or isinstance(replica, bool) or self.kind in _OURS:
            return None
        return replica
