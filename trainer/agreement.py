"""Collectives that carry a failure: what fails on one rank is raised on all, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from trainer.waits import Waits

T = TypeVar("T")
S = TypeVar("S")


def on_rank_zero(action: Callable[[], T], waits: Waits) -> T:
    """Run `action` on rank 0 and give every rank its result, or raise its exception on every rank."""
    outcome = [_attempt(action) if dist.get_rank() == 0 else None]
    with waits.waiting():
        dist.broadcast_object_list(outcome, src=0)
    return _unwrap(outcome[0])


def on_every_rank(action: Callable[[], T], waits: Waits) -> list[T]:
    """Run `action` on every rank and give every rank all results, or raise the lowest failing rank's exception."""
    outcomes: list[tuple[T | None, Exception | None] | None] = [None] * dist.get_world_size()
    outcome = _attempt(action)
    with waits.waiting():
        dist.all_gather_object(outcomes, outcome)
    return [_unwrap(outcome) for outcome in outcomes]


def through_rank_zero(action: Callable[[], T], combine: Callable[[list[T]], list[S]], waits: Waits) -> S:
    """Run `action` on every rank, hand rank 0 all results to `combine`, and give each rank its item of what that makes.

    What fails anywhere is raised on every rank.
    """
    is_first, world_size = dist.get_rank() == 0, dist.get_world_size()
    outcomes: list[tuple[T | None, Exception | None] | None] | None = [None] * world_size if is_first else None
    outcome = _attempt(action)
    with waits.waiting():
        dist.gather_object(outcome, outcomes, dst=0)
    answers: list[tuple[S | None, Exception | None]] | None = None
    if outcomes is not None:
        combined, error = _attempt(lambda: combine([_unwrap(each) for each in outcomes]))
        answers = [(None, error)] * world_size if combined is None else [(each, None) for each in combined]
    answer: list[tuple[S | None, Exception | None] | None] = [None]
    with waits.waiting():
        dist.scatter_object_list(answer, answers, src=0)
    return _unwrap(answer[0])


def _attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return action(), None
    except Exception as error:  # carried to every rank and raised there
        return None, error


def _unwrap(outcome: tuple[T | None, Exception | None] | None) -> T:
    assert outcome is not None
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # T itself may be None
