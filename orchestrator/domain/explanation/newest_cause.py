"""The first cause of a job's newest failure, read from its attempts and their generations. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.accounting.injections import Injection, find_cause
from orchestrator.domain.accounting.life import Life, Trouble
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import JobState
from trainer.contract.failure import Failure, FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`collateral_ranks` ended with the failed one."""

    failure: Failure
    at: datetime
    attempt: int
    generation: int | None
    in_place: bool = False  # it ended a generation, and the attempt continued
    collateral_ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()  # whose record has this failure
    lost_nodes: tuple[str, ...] = ()  # that the next generation does not have
    over: bool  # training has continued or finished since
    chaos: Injection | None = None  # the requested fault that led to it


def find_newest_cause(chronicle: Chronicle, life: Life) -> Cause | None:
    """The cause of the newest attempt that failed, or of a newer generation that failed in a live attempt."""
    trouble = max((each for attempt in life.attempts for each in attempt.troubles), key=_term, default=None)
    failed = [each for each in chronicle.attempts if each.failure is not None]
    if failed and (trouble is None or failed[-1].key.number >= trouble.attempt):
        cause = _cause_of_attempt(chronicle, failed[-1], trouble)
    elif trouble is not None:
        cause = _cause_in_place(chronicle, life, trouble)
    else:
        return None
    chaos = find_cause(life.injections, attempt=cause.attempt, generation=cause.generation, at=cause.at)
    return replace(cause, chaos=chaos)


def _term(trouble: Trouble) -> tuple[int, int]:
    return trouble.attempt, trouble.generation


def _cause_of_attempt(chronicle: Chronicle, attempt: Attempt, trouble: Trouble | None) -> Cause:
    """The attempt's failure is the first cause among all agents' reports. Its newest trouble has the other ranks."""
    number = attempt.key.number
    failure = attempt.failure or Failure(kind=FailureKind.UNKNOWN, message=attempt.reason)
    mine = trouble if trouble is not None and trouble.attempt == number else None
    replaced = attempt is not chronicle.attempts[-1] and chronicle.job.state is JobState.RUNNING
    return Cause(
        failure=failure,
        at=attempt.ended_at or attempt.created_at,
        attempt=number,
        generation=None if mine is None else mine.generation,
        collateral_ranks=() if mine is None else _collateral(mine, failure),
        nodes=attempt.marked_nodes,
        lost_nodes=attempt.marked_nodes,
        over=replaced or chronicle.job.state is JobState.SUCCEEDED,
    )


def _cause_in_place(chronicle: Chronicle, life: Life, trouble: Trouble) -> Cause:
    newest = max(((each.number, one.number) for each in life.attempts for one in each.generations), default=(0, 0))
    return Cause(
        failure=trouble.failure,
        at=trouble.at,
        attempt=trouble.attempt,
        generation=trouble.generation,
        in_place=True,
        collateral_ranks=_collateral(trouble, trouble.failure),
        lost_nodes=trouble.lost_nodes,
        over=newest > _term(trouble) or chronicle.job.state is JobState.SUCCEEDED,
    )


def _collateral(trouble: Trouble, failure: Failure) -> tuple[int, ...]:
    return tuple(rank for rank in trouble.collateral_ranks if rank != failure.rank)
