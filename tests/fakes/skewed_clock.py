"""The time of day as one machine has it."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.ports.clock import Clock


class SkewedClock:
    """Implements ports.Clock."""

    def __init__(self, true: Clock, skew_s: float = 0.0) -> None:
        self.skew_s = skew_s
        self._true = true

    def now(self) -> datetime:
        return self._true.now() + timedelta(seconds=self.skew_s)
