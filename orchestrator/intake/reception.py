"""Store HTTP reports in groups, because many agents send small reports and each transaction is expensive.

A report is answered after it is stored. It waits briefly for others to join its transaction, and only while they
arrive. It does not wait if it has already waited for an earlier transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from orchestrator.domain.errors import Unavailable
from orchestrator.intake.intake import Intake
from orchestrator.intake.report_queue import ReportQueue, Waiting
from orchestrator.wire.reports import DesiredView, ReportBody

_GATHER_S = 0.1
_NEXT_S = 0.02  # if no other report comes for so long, the group is complete
_MOST = 500  # reports in one transaction
_MOST_LINES = 10_000  # in one transaction, so that it takes a fraction of a second; PostgreSQL ends an idle one


class Reception:
    """Stores reports in a thread of its own, between `start` and `stop`."""

    def __init__(
        self, intake: Intake, *, gather_s: float = _GATHER_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._intake = intake
        self._gather_s, self._monotonic = gather_s, monotonic
        self._queue = ReportQueue()
        self._thread = threading.Thread(target=self._run, name="reception", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer the waiting reports, then end."""
        self._queue.close()
        self._thread.join(timeout=30)

    def receive(self, body: ReportBody) -> Future[DesiredView]:
        """Return a future with what is desired of the attempt, set once the report is stored.

        It raises the error that Intake.accept returns for the report, or Unavailable if too many reports wait.
        """
        answer: Future[DesiredView] = Future()
        if not self._queue.put(Waiting(body, answer, self._monotonic())):
            answer.set_exception(Unavailable("too many reports are waiting; send this one again later"))
        return answer

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            self._answer(self._gather(first))

    def _gather(self, first: Waiting) -> list[Waiting]:
        """Collect the reports that arrive in time, up to the limits of a transaction."""
        group, lines, deadline = [first], first.lines, first.since + self._gather_s
        while len(group) < _MOST and lines < _MOST_LINES:
            following = self._queue.get(timeout=min(_NEXT_S, max(0.0, deadline - self._monotonic())))
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
            # Waiting reports get the error, and the thread continues.
            answers = [error] * len(group)
        for (_, future, _), answer in zip(group, answers, strict=True):
            if not future.set_running_or_notify_cancel():
                continue  # the sender has disconnected; its report stays stored
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
