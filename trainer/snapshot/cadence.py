"""When a snapshot is due. Rank 0 decides, and the step's all-reduce carries the decision to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trainer.contract.config import Interval
from trainer.contract.daly import young_daly_s

_AUTO_SHORTEST_S = 10.0
_AUTO_LONGEST_S = 3600.0  # an upper limit on lost work, however rare failures are
_RESERVE = 1.5  # the last snapshot before a stop may take this much longer than the previous one
# Before a job has a history: one failure a day of any cause, or the node failures of a large job. 226 node-days
# between failures is the mean of two clusters in Kokolis et al., arXiv 2410.21680 (6.50 and 2.34 per 1000 node-days).
_PRIOR_S = 86400.0
_PRIOR_NODE_S = 226 * 86400.0


@dataclass
class Cost:
    """The cost of snapshots in seconds."""

    stall_s: float = 0.0  # how long training stopped for the newest one
    duration_s: float = 0.0  # from its begin to its commit
    all_stalls_s: float = 0.0  # how long training has stopped for all of them
    all_held_s: float = 0.0  # the part of that within steps, whose update waited for copies

    def add_stall(self, seconds: float, *, is_begun: bool) -> None:
        """Add the time for which training stopped to begin a snapshot, including the wait for the previous one.

        A snapshot that failed to begin says nothing about the cost of the next.
        """
        self.stall_s = seconds if is_begun else self.stall_s
        self.all_stalls_s += seconds

    def add_hold(self, seconds: float) -> None:
        """Add the time for which a step's update waited until the snapshot in progress had copied its tensors."""
        self.stall_s += seconds
        self.all_stalls_s += seconds
        self.all_held_s += seconds

    def add_copy(self, seconds: float) -> None:
        """Add the time for which a step waited for its copy in memory. It says nothing about snapshots on disk."""
        self.all_stalls_s += seconds
        self.all_held_s += seconds


class Cadence:
    """Times are seconds of one monotonic clock. The saver keeps `cost` up to date.

    `read_mtbf_s` returns the mean time between failures. It is called once after each snapshot.
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
        """Whether to save after `step` completed steps. An interval in seconds waits for the previous save."""
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        return not is_busy and now - self._last_at >= (self._interval.seconds or self._auto_s())

    def saved(self, now: float) -> None:
        """A snapshot has begun, or has failed to begin: a full disk is not tried again at every step."""
        self._last_at = now
        if self._interval.steps is None and self._interval.seconds is None:
            with suppress(OSError):  # keep the previous estimate
                self._mtbf_s = self._read_mtbf_s()

    def fits(self, notice_s: float | None, *, is_busy: bool = False) -> bool:
        """Whether one more snapshot fits into `notice_s` seconds, after the current one if `is_busy`.

        True while no snapshot has been measured, or the notice is unknown.
        """
        return notice_s is None or _RESERVE * self._cost.duration_s * (2 if is_busy else 1) <= notice_s

    def _auto_s(self) -> float:
        if self._mtbf_s is None:
            return _AUTO_SHORTEST_S  # the first snapshot measures the cost
        return min(_AUTO_LONGEST_S, max(_AUTO_SHORTEST_S, young_daly_s(self._cost.stall_s, self._mtbf_s)))


def estimate_mtbf_s(begun_at: Sequence[float], now: float, nodes: int) -> float:
    """Mean time between failures, from when each term of the job began and a prior of one failure.

    Every term but the first began because an earlier one had ended. (The mean of a Gamma posterior.)
    """
    prior_s = min(_PRIOR_S, _PRIOR_NODE_S / nodes)
    if not begun_at:
        return prior_s
    failures, lived_s = len(begun_at) - 1, max(0.0, now - min(begun_at))
    return (prior_s + lived_s) / (1 + failures)
