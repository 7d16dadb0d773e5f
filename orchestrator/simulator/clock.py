"""Time that passes only when it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from orchestrator.ports.clock import Clock

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """Implements ports.Clock."""

    def __init__(self, now: datetime = BEGINNING) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def monotonic(self) -> float:
        """Seconds of a steady clock, which no correction of the time of day touches."""
        return (self._now - BEGINNING).total_seconds()


class SkewedClock:
    """Implements ports.Clock: the time of day as one machine has it."""

    def __init__(self, true: Clock, skew_s: float = 0.0) -> None:
        self.skew_s = skew_s
        self._true = true

    def now(self) -> datetime:
        return self._true.now() + timedelta(seconds=self.skew_s)
