"""Events: the append-only account of a job, each with a sentence for its owner and the evidence behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class EventKind(StrEnum):
    """Kinds that the service writes. Agents and workers add theirs: trainer.contract.exit_record.EventKind."""

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
    RECOVERED = "recovery.attempt"  # a new attempt's workers are up: with the seconds since the last end was seen
    GREW_BACK = "recovery.grown"  # an attempt makes room for a larger one
    NODE_MARKED = "node.marked"
    REMOVED = "retention.removed"  # something that an ended job had left, after its time
    FILE_BROKEN = "file.broken"  # a file in the job's folder cannot be parsed; reported once
    LIMIT_REACHED = "limit.reached"  # a limit on what is stored of an attempt or a job; reported once
    FIRST_STEP = "step.first"  # of an attempt: told to the service's own listeners, never stored


_LARGEST = 1e8  # seconds, steps or workers that are believed
_OURS = frozenset(kind.value for kind in EventKind)
REPLICA = "replica"  # in the evidence of what agents and their workers tell: which of the attempt's


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `at` is when it happened, which for a journal read after an outage lies before its arrival."""

    at: datetime
    kind: str
    sentence: str
    attempt: int | None = None
    generation: int | None = None
    evidence: dict[str, object] = field(default_factory=dict)
    actor: str | None = None  # who asked for it; None: nobody, the service or an agent did it

    def number(self, name: str) -> float | None:
        """A number of the evidence, from 0 to _LARGEST; None for anything else.

        Agents of any version write evidence, and anyone may write into a run directory.
        """
        value = self.evidence.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if 0 <= value <= _LARGEST else None

    @property
    def replica(self) -> int | None:
        """Whose agent, or which of its workers, told it; None: the service did, or a store that kept no such thing."""
        replica = self.evidence.get(REPLICA)
        if not isinstance(replica, int) or isinstance(replica, bool) or self.kind in _OURS:
            return None
        return replica
