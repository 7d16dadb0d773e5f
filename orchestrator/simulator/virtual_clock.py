"""A virtual clock with a queue of events. Times are whole microseconds, so that sums are exact."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def us(seconds: float) -> int:
    return round(seconds * SECOND)


class VirtualClock:
    """Implements ports.Clock. Time passes only when it is advanced.

    Events run in order of time, and events of the same time in the order in which they were scheduled.
    """

    def __init__(self, start: datetime = START) -> None:
        self.now_us = 0  # since the start
        self._start = start
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    def now(self) -> datetime:
        return self.moment(self.now_us)

    def moment(self, at_us: int) -> datetime:
        return self._start + timedelta(microseconds=at_us)

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return self.now_us / SECOND

    def us_at(self, moment: datetime) -> int:
        return (moment - self._start) // _MICROSECOND

    def at(self, at_us: int, event: Callable[[], None]) -> None:
        """Schedule an event. An event in the past is due at once."""
        self._scheduled += 1
        heapq.heappush(self._events, (max(at_us, self.now_us), self._scheduled, event))

    def after(self, pause_us: int, event: Callable[[], None]) -> None:
        self.at(self.now_us + pause_us, event)

    @property
    def next_us(self) -> int | None:
        """When the next event is due."""
        return self._events[0][0] if self._events else None

    def advance(self, seconds: float) -> None:
        """Advance the clock. A negative number sets it back, as an administrator can."""
        self.now_us += us(seconds)

    def advance_to(self, at_us: int) -> None:
        if at_us < self.now_us:
            raise AssertionError(f"time cannot run backwards, from {self.now_us} to {at_us} us")
        self.now_us = at_us

    def run_due(self) -> None:
        """Run every event that is due."""
        while self._events and self._events[0][0] <= self.now_us:
            heapq.heappop(self._events)[2]()
