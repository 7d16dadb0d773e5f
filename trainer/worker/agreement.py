"""Collectives that carry failures: an exception on one rank is raised on all, and no rank waits forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from trainer.worker.waits import Waits

T = TypeVar("T")
S = TypeVar("S")
Outcome = tuple[T | None, Exception | None]


def on_rank_zero(action: Callable[[], T], waits: Waits) -> T:
    """Run `action` on rank 0, and return its result or raise its exception on every rank."""
    outcome = [attempt(action) if dist.get_rank() == 0 else None]
    with waits.waiting():
        dist.broadcast_object_list(outcome, src=0)
    return unwrap(outcome[0])


def on_every_rank(action: Callable[[], T], waits: Waits) -> list[T]:
    """Run `action` on every rank, and return all results, or raise the exception of the lowest failing rank."""
    return share(attempt(action), waits)


def succeed_together(action: Callable[[], None], waits: Waits) -> None:
    """Like `on_every_rank`. If all ranks succeed this takes one small all-reduce, a third of the time."""
    outcome = attempt(action)
    failures = torch.tensor(float(outcome[1] is not None))
    with waits.waiting():
        dist.all_reduce(failures)
    if failures.item():
        share(outcome, waits)


def share(outcome: Outcome[T], waits: Waits) -> list[T]:
    """Like `on_every_rank`, for an action that each rank has already attempted."""
    outcomes: list[Outcome[T] | None] = [None] * dist.get_world_size()
    with waits.waiting():
        dist.all_gather_object(outcomes, outcome)
    return [unwrap(outcome) for outcome in outcomes]


def through_rank_zero(action: Callable[[], T], combine: Callable[[list[T]], list[S]], waits: Waits) -> S:
    """Run `action` on every rank, `combine` the results on rank 0, and return to each rank its item.

    What fails anywhere is raised on every rank.
    """
    is_first, world_size = dist.get_rank() == 0, dist.get_world_size()
    outcomes: list[Outcome[T] | None] | None = [None] * world_size if is_first else None
    outcome = attempt(action)
    with waits.waiting():
        dist.gather_object(outcome, outcomes, dst=0)
    answers: list[Outcome[S]] | None = None
    if outcomes is not None:
        combined, error = attempt(lambda: combine([unwrap(each) for each in outcomes]))
        answers = [(None, error)] * world_size if combined is None else [(each, None) for each in combined]
    answer: list[Outcome[S] | None] = [None]
    with waits.waiting():
        dist.scatter_object_list(answer, answers, src=0)
    return unwrap(answer[0])


def attempt(action: Callable[[], T]) -> Outcome[T]:
    """The result of `action`, or the exception that it raised."""
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001  # raised on every rank
        return None, error


def unwrap(outcome: Outcome[T] | None) -> T:
    """Return the result, or raise the exception."""
    assert outcome is not None
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # T itself may be None
