"""Callers that share a transaction: who stores, who waits, and whose error it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from orchestrator.domain.errors import StoreUnavailable
from orchestrator.store.group_commit import GroupCommit


@dataclass
class Gate:
    """A store that holds each group back until it is opened. It refuses numbers above 100."""

    groups: list[Sequence[int]] = field(default_factory=list)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None

    def store(self, group: Sequence[int]) -> Sequence[str]:
        self.groups.append(group)
        self.entered.release()
        assert self.opened.wait(60)
        if self.failure is not None:
            raise self.failure
        wrong = [each for each in group if each > 100]
        if wrong:
            raise ValueError(f"{wrong[0]} is too large")
        return [f"stored {each}" for each in group]


def add_behind(gate: Gate, threads: ThreadPoolExecutor, items: Sequence[int], *, most: int = 100) -> list[Future[str]]:
    """Add the first item, then all others while it is being stored."""
    group = GroupCommit(gate.store, most=most)
    answers = [threads.submit(group.add, items[0])]
    assert gate.entered.acquire(timeout=60)
    for number, item in enumerate(items[1:], 2):
        answers.append(threads.submit(group.add, item))
        while len(group._waiting) < number:
            threading.Event().wait(0.001)
    assert not any(answer.done() for answer in answers)
    gate.opened.set()
    return answers


def test_a_lone_caller_stores_at_once_and_in_its_own_thread() -> None:
    threads: list[int] = []

    def store(group: Sequence[int]) -> Sequence[int]:
        threads.append(threading.get_ident())
        return group

    assert GroupCommit(store).add(7) == 7
    assert threads == [threading.get_ident()]


def test_callers_that_come_during_a_transaction_share_the_next_one_in_their_order() -> None:
    gate = Gate()
    with ThreadPoolExecutor(8) as threads:
        answers = add_behind(gate, threads, [1, 2, 3, 4])
        assert [answer.result(60) for answer in answers] == ["stored 1", "stored 2", "stored 3", "stored 4"]
    assert gate.groups == [[1], [2, 3, 4]]


def test_a_large_group_takes_several_transactions() -> None:
    gate = Gate()
    with ThreadPoolExecutor(8) as threads:
        answers = add_behind(gate, threads, [1, 2, 3, 4], most=2)
        assert [answer.result(60) for answer in answers] == [f"stored {number}" for number in (1, 2, 3, 4)]
    assert gate.groups == [[1], [2, 3], [4]]


def test_a_refused_item_does_not_fail_the_others() -> None:
    gate = Gate()
    with ThreadPoolExecutor(8) as threads:
        answers = add_behind(gate, threads, [1, 2, 333, 4])
        with pytest.raises(ValueError, match="333 is too large"):
            answers[2].result(60)
        assert [answers[place].result(60) for place in (0, 1, 3)] == ["stored 1", "stored 2", "stored 4"]


def test_a_database_that_cannot_be_used_is_asked_once_for_a_group() -> None:
    gate = Gate(failure=StoreUnavailable("no disk"))
    with ThreadPoolExecutor(8) as threads:
        answers = add_behind(gate, threads, [1, 2, 3])
        for answer in answers:
            with pytest.raises(StoreUnavailable, match="no disk"):
                answer.result(60)
    assert gate.groups == [[1], [2, 3]]
