"""When a snapshot is due. Rank 0 asks this; the others hear it in the step's all-reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.contract.config import Interval

_AUTO_SHORTEST_S = 10.0
_AUTO_LONGEST_S = 3600.0  # more lost work than this nobody forgives, however rare failures are
_RESERVE = 1.5  # the last snapshot of a job that is stopped may take this much longer than the one before
# Before a job has a history: one end a day, by whatever cause, or what nodes alone cost a large job. 226 node-days
# between failures is the mean of two clusters in Kokolis et al., arXiv 2410.21680 (6.50 and 2.34 per 1000 node-days).
_PRIOR_S = 86400.0
_PRIOR_NODE_S = 226 * 86400.0


@dataclass
class Cost:
    """Seconds of the newest snapshot: how long training stood still for it, and from its begin to its commit."""

    stall_s: float = 0.0
    duration_s: float = 0.0


class Cadence:
    """Times are those of one monotonic clock, in seconds. `cost` is kept up to date by whoever saves.

    `read_mtbf_s` is asked for the mean time between failures, once after each snapshot.
    """

    def __init__(
        self,
        interval: Interval,
        *,
        started_at: float,
        cost: Cost,
        read_mtbf_s: Callable[[], float] = lambda: estimate_mtbf_s((), 0.0, nodes=1),
    ) -> None:
        self._interval, self._cost = interval, cost
        self._last_at = started_at
        self._read_mtbf_s = read_mtbf_s
        self._mtbf_s: float | None = None

    def is_due(self, step: int, now: float, *, is_busy: bool = False) -> bool:
        """Whether to save after `step` completed steps; what goes by time waits until the one before is done."""
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        return not is_busy and now - self._last_at >= (self._interval.seconds or self._auto_s())

    def saved(self, now: float) -> None:
        """One has been begun, or the try has failed: a full disk is not tried at every step."""
        self._last_at = now
        self._mtbf_s = self._read_mtbf_s()

    def fits(self, notice_s: float | None, *, is_busy: bool = False) -> bool:
        """Whether one more can be done in so many seconds, behind the one that is being made if `is_busy`.

        Yes while none was measured or the notice is unknown.
        """
        return notice_s is None or _RESERVE * self._cost.duration_s * (2 if is_busy else 1) <= notice_s

    def _auto_s(self) -> float:
        if self._mtbf_s is None:
            return _AUTO_SHORTEST_S  # the first one measures
        return min(_AUTO_LONGEST_S, max(_AUTO_SHORTEST_S, young_daly_s(self._cost.stall_s, self._mtbf_s)))


def young_daly_s(stall_s: float, mtbf_s: float) -> float:
    """The interval that loses least, training time between two snapshots: Daly 2006, FGCS 22(3), equation 37."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def estimate_mtbf_s(begun_at: Sequence[float], now: float, nodes: int) -> float:
    """Mean time between failures from when each of a job's terms began: its own history, beside one failure of a prior.

    All but the first term began because one before it had ended. (The mean of a Gamma posterior.)
    """
    prior_s = min(_PRIOR_S, _PRIOR_NODE_S / nodes)
    if not begun_at:
        return prior_s
    failures, lived_s = len(begun_at) - 1, max(0.0, now - min(begun_at))
    return (prior_s + lived_s) / (1 + failures)
