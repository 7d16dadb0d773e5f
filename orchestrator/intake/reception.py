"""Reports over HTTP, taken in together: many agents tell a little at a time, and one transaction costs as much as ten.

Every report is stored before it is answered; it waits a moment for others to come, unless it has waited already while
those before it were stored.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from orchestrator.domain.errors import Unavailable
from orchestrator.intake.intake import Intake
from orchestrator.wire.reports import DesiredView, ReportBody

_GATHER_S = 0.1
_MOST = 500  # reports in one transaction
_WAITING_ROOM = 5000  # reports; whoever comes then is asked to come again


class Waiting(NamedTuple):
    body: ReportBody
    answer: Future[DesiredView]
    since: float  # monotonic seconds


class Reception:
    """Takes reports in from one thread. Between `start` and `stop`."""

    def __init__(
        self, intake: Intake, *, gather_s: float = _GATHER_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._intake = intake
        self._gather_s, self._monotonic = gather_s, monotonic
        self._waiting: queue.Queue[Waiting | None] = queue.Queue(maxsize=_WAITING_ROOM)
        self._thread = threading.Thread(target=self._run, name="reception", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer whoever waits, then end."""
        self._waiting.put(None)
        self._thread.join(timeout=30)

    def receive(self, body: ReportBody) -> Future[DesiredView]:
        """What is desired of the attempt, once the report is stored. The future raises what Intake.accept does;
        Unavailable when too many wait already."""
        answer: Future[DesiredView] = Future()
        try:
            self._waiting.put_nowait(Waiting(body, answer, self._monotonic()))
        except queue.Full:
            answer.set_exception(Unavailable("more reports come than can be stored; they will be sent again"))
        return answer

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, ends = self._gather(first)
            self._answer(group)
            if ends:
                return

    def _gather(self, first: Waiting) -> tuple[list[Waiting], bool]:
        """Whoever comes within the time; whether it was the last group."""
        group, deadline = [first], first.since + self._gather_s
        while len(group) < _MOST:
            try:
                following = self._waiting.get(timeout=max(0.0, deadline - self._monotonic()))
            except queue.Empty:
                break
            if following is None:
                return group, True
            group.append(following)
        return group, False

    def _answer(self, group: Sequence[Waiting]) -> None:
        answers: Sequence[DesiredView | Exception]
        try:
            answers = self._intake.accept([waiting.body for waiting in group])
        except Exception as error:
            # The thread's edge: whatever the trouble, those who wait hear of it and the next ones are served.
            answers = [error] * len(group)
        for (_, future, _), answer in zip(group, answers, strict=True):
            if not future.set_running_or_notify_cancel():
                continue  # its sender has gone; its report stays stored
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
