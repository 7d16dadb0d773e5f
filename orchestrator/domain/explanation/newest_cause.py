"""The first cause of a job's newest failure, read from its attempts and their generations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.accounting.injections import Injection, find_cause
from orchestrator.domain.accounting.life import Life, Trouble
from orchestrator.domain.accounting.losses import Lost, name_nodes
from orchestrator.domain.accounting.restarts import count_repeated, find_time_to_next_step
from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import JobState
from trainer.contract.failure import Failure, FailureKind

_SOURCES = {
    "memory": "a copy in memory",
    "buddy": "a copy in the memory of another node",
    "survivor": "the memory of a surviving worker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The state from which training continued. What is not known is None.

    `repeated` counts the steps that were made twice. `seconds` pass from the failure to the next completed step.
    """

    step: int
    source: str
    repeated: int | None
    seconds: float | None = None

    def __str__(self) -> str:
        parts = [f"after step {self.step}, from {_SOURCES.get(self.source, 'a snapshot')}"]
        if self.repeated is not None:
            parts.append(f"{counted(self.repeated, 'step') if self.repeated else 'no step'} repeated")
        if self.seconds is not None:
            parts.append(f"next step {self.seconds:.1f} s after the failure")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`collateral_ranks` ended with the failed one."""

    failure: Failure
    at: datetime
    attempt: int
    generation: int | None
    in_place: bool = False  # it ended a generation, and the attempt continued
    collateral_ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()  # nodes whose record has this failure
    lost: Lost | None = None  # the nodes that were lost with the attempt, or who left the group
    over: bool  # training has continued or finished since
    chaos: Injection | None = None  # the requested fault that led to it
    continued: Continuation | None = None


def find_newest_cause(chronicle: Chronicle, life: Life) -> Cause | None:
    """Return the cause of the newest attempt that failed, or of a newer generation that failed in a live attempt."""
    trouble = max((each for attempt in life.attempts for each in attempt.troubles), key=_term, default=None)
    failed = [each for each in chronicle.attempts if each.failure is not None]
    if failed and (trouble is None or failed[-1].key.number >= trouble.attempt):
        cause = _cause_of_attempt(chronicle, life, failed[-1])
    elif trouble is not None:
        cause = _cause_in_place(chronicle, life, trouble)
    else:
        return None
    chaos = find_cause(life.injections, attempt=cause.attempt, generation=cause.generation, at=cause.at)
    return replace(cause, chaos=chaos, continued=_find_continuation(life, cause))


def _find_continuation(life: Life, cause: Cause) -> Continuation | None:
    """What a later generation restored first. None if none has restored anything."""
    if cause.generation is None:
        return None
    generations = {(each.number, one.number): one for each in life.attempts for one in each.generations}
    failed = generations.get((cause.attempt, cause.generation))
    later = [term for term, one in generations.items() if one.restored_at is not None]
    first = min((term for term in later if term > (cause.attempt, cause.generation)), default=None)
    if first is None:
        return None
    one = generations[first]
    return Continuation(
        step=one.restored_step,
        source=one.restored_from,
        repeated=count_repeated(failed, one),
        seconds=find_time_to_next_step(cause.at, one),
    )


def _term(trouble: Trouble) -> tuple[int, int]:
    return trouble.attempt, trouble.generation


def _cause_of_attempt(chronicle: Chronicle, life: Life, attempt: Attempt) -> Cause:
    """The attempt's failure is the first cause among all agents' reports. It ended the last group that formed."""
    number = attempt.key.number
    failure = attempt.failure or Failure(kind=FailureKind.UNKNOWN, message=attempt.reason)
    generation, ranks = _find_last_group(life, number)
    replaced = attempt is not chronicle.attempts[-1] and chronicle.job.state is JobState.RUNNING
    return Cause(
        failure=failure,
        at=attempt.ended_at or attempt.created_at,
        attempt=number,
        generation=generation,
        collateral_ranks=tuple(rank for rank in ranks if rank != failure.rank),
        nodes=attempt.marked_nodes,
        lost=name_nodes(attempt.marked_nodes) if attempt.marked_nodes else None,
        over=replaced or chronicle.job.state is JobState.SUCCEEDED,
    )


def _find_last_group(life: Life, attempt: int) -> tuple[int | None, Sequence[int]]:
    """The attempt's last generation, and the ranks that ended with it: all of them, unless a report says which."""
    mine = next((each for each in life.attempts if each.number == attempt), None)
    group = mine.generations[-1] if mine is not None and mine.generations else None
    trouble = mine.troubles[-1] if mine is not None and mine.troubles else None
    if trouble is not None and (group is None or trouble.generation >= group.number):
        return trouble.generation, trouble.collateral_ranks
    return (None, ()) if group is None else (group.number, range(group.world_size))


def _cause_in_place(chronicle: Chronicle, life: Life, trouble: Trouble) -> Cause:
    newest = max(((each.number, one.number) for each in life.attempts for one in each.generations), default=(0, 0))
    return Cause(
        failure=trouble.failure,
        at=trouble.at,
        attempt=trouble.attempt,
        generation=trouble.generation,
        in_place=True,
        collateral_ranks=tuple(rank for rank in trouble.collateral_ranks if rank != trouble.failure.rank),
        lost=trouble.lost,
        over=newest > _term(trouble) or chronicle.job.state is JobState.SUCCEEDED,
    )
