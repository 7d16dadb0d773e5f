"""Let concurrent callers share a transaction, because each transaction is expensive.

One caller stores the items of all waiting callers. Callers that arrive meanwhile form the next group. No caller waits
for others to arrive.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from orchestrator.domain.errors import StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_MOST = 100  # items in one transaction


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Generic[Item, Answer]):
    """`turn` is set once there is an answer, or once this caller must store the next group."""

    item: Item
    answer: Future[Answer] = field(default_factory=Future)
    turn: threading.Event = field(default_factory=threading.Event)


class GroupCommit(Generic[Item, Answer]):
    """`store` stores a group in one transaction and returns an answer for each item. Thread-safe."""

    def __init__(self, store: Callable[[Sequence[Item]], Sequence[Answer]], *, most: int = _MOST) -> None:
        self._store, self._most = store, most
        self._waiting: deque[_Waiting[Item, Answer]] = deque()  # the first of them stores
        self._lock = threading.Lock()

    def add(self, item: Item) -> Answer:
        """Block until the item is committed, and return its answer.

        Raises what `store` raises for this item alone, or StoreUnavailable if its group could not be stored.
        """
        mine: _Waiting[Item, Answer] = _Waiting(item)
        with self._lock:
            self._waiting.append(mine)
            is_first = self._waiting[0] is mine
        if not is_first:
            mine.turn.wait()
        if not mine.answer.done():
            self._store_next()
        return mine.answer.result()

    def _store_next(self) -> None:
        with self._lock:
            group = list(islice(self._waiting, self._most))
        self._answer(group)
        with self._lock:
            for _ in group:
                self._waiting.popleft()
            following = self._waiting[0] if self._waiting else None
        for each in group:
            each.turn.set()
        if following is not None:
            following.turn.set()

    def _answer(self, group: Sequence[_Waiting[Item, Answer]]) -> None:
        """Store the group, or each item in its own transaction if one of them fails."""
        try:
            answers = self._store([each.item for each in group])
        except Exception as error:  # noqa: BLE001
            # The callers raise it.
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for each in group:
                    each.answer.set_exception(error)
            else:
                for each in group:
                    self._answer([each])
            return
        for each, answer in zip(group, answers, strict=True):
            each.answer.set_result(answer)
