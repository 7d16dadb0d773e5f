"""A queue of reports that serves jobs in rotation, so that a job with many reports does not delay others."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from typing import NamedTuple

from orchestrator.wire.reports import DesiredView, ReportBody

_MOST = 5000  # reports
_MOST_OF_A_JOB = 1250  # enough if a thousand nodes report at the same time


class Waiting(NamedTuple):
    body: ReportBody
    answer: Future[DesiredView]
    since: float  # monotonic seconds

    @property
    def lines(self) -> int:
        return len(self.body.progress) + len(self.body.events)


class ReportQueue:
    """Thread-safe."""

    def __init__(self, *, most: int = _MOST, most_of_a_job: int = _MOST_OF_A_JOB) -> None:
        self._most, self._most_of_a_job = most, most_of_a_job
        self._jobs: OrderedDict[str, deque[Waiting]] = OrderedDict()  # the job whose turn is next is first
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, waiting: Waiting) -> bool:
        """Add a report. Returns False if the queue, or its job's part of it, is full."""
        with self._changed:
            mine = self._jobs.get(waiting.body.job_id, ())
            if self._count >= self._most or len(mine) >= self._most_of_a_job:
                return False
            self._jobs.setdefault(waiting.body.job_id, deque()).append(waiting)
            self._count += 1
            self._changed.notify()
            return True

    def close(self) -> None:
        """From now on `get` does not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def get(self, timeout: float | None = None) -> Waiting | None:
        """Remove and return the next report. None if none arrived in time, or none is left after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._closed, timeout)
            if not self._count:
                return None
            job_id, mine = self._jobs.popitem(last=False)
            if len(mine) > 1:
                self._jobs[job_id] = mine  # after the others
            self._count -= 1
            return mine.popleft()
