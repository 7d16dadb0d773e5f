"""Reports over HTTP, taken in together: many agents tell a little at a time, and one transaction costs as much as ten.

Every report is stored before it is answered; it waits a moment for others to come, unless it has waited already while
those before it were stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from orchestrator.domain.errors import Unavailable
from orchestrator.intake.intake import Intake
from orchestrator.intake.waiting import Waiting, WaitingRoom
from orchestrator.wire.reports import DesiredView, ReportBody

_GATHER_S = 0.1
_MOST = 500  # reports in one transaction
_MOST_LINES = 10_000  # no further report is added: a fraction of a second, for PostgreSQL aborts one that idles


class Reception:
    """Takes reports in from one thread. Between `start` and `stop`."""

    def __init__(
        self, intake: Intake, *, gather_s: float = _GATHER_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._intake = intake
        self._gather_s, self._monotonic = gather_s, monotonic
        self._waiting = WaitingRoom()
        self._thread = threading.Thread(target=self._run, name="reception", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer whoever waits, then end."""
        self._waiting.close()
        self._thread.join(timeout=30)

    def receive(self, body: ReportBody) -> Future[DesiredView]:
        """What is desired of the attempt, once the report is stored. The future raises what Intake.accept does;
        Unavailable when too many wait already."""
        answer: Future[DesiredView] = Future()
        if not self._waiting.enter(Waiting(body, answer, self._monotonic())):
            answer.set_exception(Unavailable("more reports arrive than can be stored; send this one again"))
        return answer

    def _run(self) -> None:
        while (first := self._waiting.leave()) is not None:
            self._answer(self._gather(first))

    def _gather(self, first: Waiting) -> list[Waiting]:
        """The reports that arrive within the time, up to the limits of a transaction."""
        group, lines, deadline = [first], first.lines, first.since + self._gather_s
        while len(group) < _MOST and lines < _MOST_LINES:
            following = self._waiting.leave(timeout=max(0.0, deadline - self._monotonic()))
            if following is None:
                break
            group.append(following)
            lines += following.lines
        return group

    def _answer(self, group: Sequence[Waiting]) -> None:
        answers: Sequence[DesiredView | Exception]
        try:
            answers = self._intake.accept([waiting.body for waiting in group])
        except Exception as error:  # noqa: BLE001
            # The thread's edge: whatever the trouble, those who wait hear of it and the next ones are served.
            answers = [error] * len(group)
        for (_, future, _), answer in zip(group, answers, strict=True):
            if not future.set_running_or_notify_cancel():
                continue  # its sender has gone; its report stays stored
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
