"""What is to happen when. Times are whole microseconds since the beginning, so that sums are exact."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta

from orchestrator.simulator.clock import BEGINNING

SECOND = 1_000_000
_MICROSECOND = timedelta(microseconds=1)


def us(seconds: float) -> int:
    return round(seconds * SECOND)


def moment(at_us: int) -> datetime:
    return BEGINNING + timedelta(microseconds=at_us)


def since_beginning_us(at: datetime) -> int:
    return (at - BEGINNING) // _MICROSECOND


class Agenda:
    """Events in the order of their times; of one time, in the order of their entry. Implements ports.Clock."""

    def __init__(self) -> None:
        self.now_us = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._entered = 0

    def now(self) -> datetime:
        return moment(self.now_us)

    def at(self, at_us: int, event: Callable[[], None]) -> None:
        self._entered += 1
        heapq.heappush(self._events, (max(at_us, self.now_us), self._entered, event))

    def after(self, pause_us: int, event: Callable[[], None]) -> None:
        self.at(self.now_us + pause_us, event)

    @property
    def next_us(self) -> int | None:
        return self._events[0][0] if self._events else None

    def jump(self, to_us: int) -> None:
        """Never back: whoever measures a pause must not find it negative."""
        if to_us < self.now_us:
            raise AssertionError(f"time runs backwards, from {self.now_us} to {to_us} us")
        self.now_us = to_us

    def run_due(self) -> bool:
        """Let everything happen whose time has come; whether anything did."""
        happened = False
        while self._events and self._events[0][0] <= self.now_us:
            heapq.heappop(self._events)[2]()
            happened = True
        return happened
