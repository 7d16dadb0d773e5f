"""Threads of several nodes on a virtual clock. One runs at a time, in an order that depends only on the clock.

A node can be paused, as by SIGSTOP: its threads stop where they wait, and see afterwards that time has passed.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NoAnswerYet
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

FOREVER_S = float("inf")
_HANDS_ON_S = 60.0  # of the real clock: a thread that runs for longer is stuck


class Over(BaseException):
    """The clock has ended. Raised once in every thread that waits."""


@dataclass(frozen=True)
class Pause:
    node: str
    begin_s: float
    end_s: float


@dataclass(eq=False)
class _Task:
    node: str
    number: int
    wake_s: float
    is_ready: Callable[[], bool] | None = None
    is_done: bool = False
    has_raised: bool = False  # Over
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Clock:
    """Start threads by `spawn`, then `run`. `time`, `queue` and `threading` replace the modules of these names."""

    def __init__(self, pauses: Sequence[Pause] = ()) -> None:
        self.now_s = 1000.0
        self.is_over = False
        self._pauses = sorted(pauses, key=lambda each: each.begin_s)
        self._tasks: list[_Task] = []
        self._mine = threading.local()
        self._baton = threading.Semaphore(0)
        self._numbers = itertools.count()
        self.errors: list[BaseException] = []
        self.time = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        self.queue = SimpleNamespace(SimpleQueue=lambda: _Queue(self), Empty=queue.Empty)
        self.threading = SimpleNamespace(Thread=lambda **given: _Thread(self, **given))

    def future(self) -> _Future:
        return _Future(self)

    def spawn(self, node: str, body: Callable[[], object]) -> _Task:
        task = _Task(node, next(self._numbers), self.now_s)
        self._tasks.append(task)
        threading.Thread(target=self._live, args=(task, body), daemon=True).start()
        return task

    @property
    def node(self) -> str:
        """The node of the calling thread."""
        return self._mine.task.node

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def wait(self, timeout_s: float | None, is_ready: Callable[[], bool] | None = None) -> None:
        """Let other threads run until `is_ready`, or the time is up."""
        self.wait_until(FOREVER_S if timeout_s is None else self.now_s + timeout_s, is_ready)

    def wait_until(self, wake_s: float, is_ready: Callable[[], bool] | None = None) -> None:
        task: _Task = self._mine.task
        if not self.is_over:
            task.wake_s, task.is_ready = wake_s, is_ready
            self._baton.release()
            task.baton.acquire()
        if self.is_over and not task.has_raised:
            task.has_raised = True
            raise Over

    def is_paused(self, node: str) -> bool:
        return self.awake_at(node, self.now_s) > self.now_s

    def is_or_was_paused(self, node: str, at_s: float, ago_s: float) -> bool:
        return any(each.node == node and each.begin_s <= at_s <= each.end_s + ago_s for each in self._pauses)

    def pauses_begun(self, node: str) -> list[float]:
        """The begin of the node's present pause, if it is paused."""
        return [each.begin_s for each in self._pauses if each.node == node and each.begin_s <= self.now_s < each.end_s]

    def pauses_ended(self, node: str) -> list[float]:
        return [each.end_s for each in self._pauses if each.node == node and each.end_s <= self.now_s]

    def awake_at(self, node: str, at_s: float) -> float:
        """The first time from `at_s` on at which the node is not paused."""
        for pause in self._pauses:
            if pause.node == node and pause.begin_s <= at_s < pause.end_s:
                at_s = pause.end_s
        return at_s

    def run(self, until_s: float) -> None:
        """Run the threads until `until_s`. Raises the error of a thread."""
        while not self.errors:
            at_s, _, task = min((self._due_s(each), each.number, each) for each in self._tasks if not each.is_done)
            if at_s > until_s:
                break
            self.now_s = max(self.now_s, at_s)
            self._hand_to(task)
        if self.errors:
            raise self.errors[0]
        self.now_s = until_s

    def end(self) -> None:
        self.is_over = True
        for task in self._tasks:
            while not task.is_done:
                self._hand_to(task)

    def _due_s(self, task: _Task) -> float:
        at_s = self.now_s if task.is_ready is not None and task.is_ready() else max(self.now_s, task.wake_s)
        return self.awake_at(task.node, at_s)

    def _hand_to(self, task: _Task) -> None:
        task.baton.release()
        assert self._baton.acquire(timeout=_HANDS_ON_S), f"a thread of {task.node} is stuck"

    def _live(self, task: _Task, body: Callable[[], object]) -> None:
        self._mine.task = task
        task.baton.acquire()
        try:
            if not self.is_over:
                body()
        except Over:
            pass
        except BaseException as error:  # the thread's edge: `run` raises it
            self.errors.append(error)
        finally:
            task.is_done = True
            self._baton.release()


class _Thread:
    """A part of threading.Thread's interface."""

    def __init__(self, clock: Clock, target: Callable[[], object], **_: object) -> None:
        self._clock, self._target = clock, target
        self._task: _Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number + 1

    def start(self) -> None:
        self._task = self._clock.spawn(self._clock.node, self._target)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        self._clock.wait(timeout, lambda: not self.is_alive())


class _Queue:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._items = clock, list[Any]()

    def put(self, item: object) -> None:
        self._items.append(item)

    def get(self, timeout: float | None = None) -> Any:
        self._clock.wait(timeout, lambda: bool(self._items))
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)


class _Future:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answer: list[Callable[[], Any]] = []

    def set_result(self, result: object) -> None:
        self._answer.append(lambda: result)

    def set_exception(self, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self._answer.append(fail)

    def done(self) -> bool:
        return bool(self._answer)

    def result(self, timeout: float | None = None) -> Any:
        self._clock.wait(timeout, self.done)
        if not self._answer:
            raise NoAnswerYet
        return self._answer[0]()
