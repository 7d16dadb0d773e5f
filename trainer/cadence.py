"""When a snapshot is due. Rank 0 asks this; the others hear it in the step's all-reduce."""

from __future__ import annotations

from trainer.contract.config import Interval

# `auto`: saving may take a twentieth of the time, and never comes more often than this.
_AUTO_COST_FACTOR = 20.0
_AUTO_SHORTEST_S = 10.0
_RESERVE = 1.5  # the last snapshot of a job that is stopped may take this much longer than the one before


class Cadence:
    """Times are those of one monotonic clock, in seconds."""

    def __init__(self, interval: Interval, *, started_at: float) -> None:
        self._interval = interval
        self._last_at = started_at
        self._cost_s = 0.0

    def is_due(self, step: int, now: float) -> bool:
        """Whether to save after `step` completed steps."""
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        wait_s = self._interval.seconds or max(_AUTO_SHORTEST_S, _AUTO_COST_FACTOR * self._cost_s)
        return now - self._last_at >= wait_s

    def fits(self, notice_s: float | None) -> bool:
        """Whether a snapshot can be done in so many seconds; yes while none was measured or the notice is unknown."""
        return notice_s is None or _RESERVE * self._cost_s <= notice_s

    def saved(self, *, started_at: float, ended_at: float) -> None:
        """Learn from a save, or from a try that failed: both take time, and a full disk is not tried at every step."""
        self._cost_s = ended_at - started_at
        self._last_at = ended_at
