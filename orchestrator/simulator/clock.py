"""Time that passes only when it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """Implements ports.Clock."""

    def __init__(self, now: datetime = BEGINNING) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
