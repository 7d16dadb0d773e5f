"""When the silence of one peer is suspicious: a phi-accrual failure detector. Pure: the caller passes the time.

Hayashibara et al., "The phi accrual failure detector" (SRDS 2004), as in Akka and Cassandra. phi is -log10 of the
probability that a living peer is silent for so long. Two models give that probability, and the greater one counts:

- Delays: the times between arrivals are normally distributed, with the mean and deviation of the last ones.
- Losses: each missing heartbeat was lost, with the share that was lost lately. A normal distribution alone
  underestimates long runs of losses.

Both are cautious while little is known, so a new link is suspected late.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

# At 12, one of 10**12 heartbeats raises a false suspicion if the models hold: at five a second, one in 6,000 years of a
# link. A lower threshold suspects no sooner on a good link, where the floor decides: phi reaches 12 after 1.2 s there.
THRESHOLD = 12.0
# What no model knows: a full machine, a switch that restarts a port, ARP. Longer intervals raise it.
FLOOR_S = 2.0
FLOOR_BEATS = 5
_WINDOW = 200
_LEAST_DEVIATION = 0.5  # of the interval; Akka's default is 100 ms


class Heartbeat(NamedTuple):
    """`sequence` counts from the start of a link. `every_s` is the time until the next heartbeat."""

    link_id: int
    sequence: int
    every_s: float


class Losses(NamedTuple):
    """Of the last `sent` heartbeats, `lost` did not arrive, in so many `holes`. A peer that is silent adds nothing."""

    sent: int
    lost: int
    holes: int


class Gap(NamedTuple):
    """The time between two heartbeats that arrived. Between them, `steps` - 1 were lost or overtaken."""

    length_s: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How many heartbeats arrived in all, and the last gaps between them, the oldest first."""

    heard: int
    gaps: tuple[Gap, ...]


class Detector:
    """Learns how heartbeats of one peer arrive. All times are seconds of the listener's monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._newest: Heartbeat | None = None
        self._gaps: deque[Gap] = deque(maxlen=_WINDOW)
        self._heard = 0
        self._since_s = now_s
        self._skipped_s = float("-inf")

    def hear(self, heartbeat: Heartbeat, now_s: float) -> bool:
        """Note a heartbeat that arrived at `now_s`. Returns False for a duplicate and for one that was overtaken."""
        newest = self._newest
        if newest is not None and newest.link_id == heartbeat.link_id:
            steps = heartbeat.sequence - newest.sequence
            if steps <= 0:
                return False
            if self._since_s > self._skipped_s:
                self._gaps.append(Gap(now_s - self._since_s, steps))
        self._newest, self._since_s, self._heard = heartbeat, now_s, self._heard + 1
        return True

    def skip(self, now_s: float) -> None:
        """Start the silence anew: until `now_s` the listener was paused. Heartbeats of that time teach nothing."""
        self._since_s = self._skipped_s = now_s

    @property
    def heard(self) -> bool:
        return self._newest is not None

    def silent_s(self, now_s: float) -> float:
        """For how long the peer is silent, if all that arrived until `now_s` has been heard."""
        return max(0.0, now_s - self._since_s)

    def suspects(self, silent_s: float) -> bool:
        """Whether a silence of `silent_s` is suspicious. Never for a peer that was not heard yet."""
        if self._newest is None or silent_s <= max(FLOOR_S, FLOOR_BEATS * self._newest.every_s):
            return False
        return self.phi(silent_s) > THRESHOLD

    def phi(self, silent_s: float) -> float:
        """0 for a peer that was not heard yet."""
        if self._newest is None:
            return 0.0
        every_s = self._newest.every_s
        return min(self._phi_of_delay(silent_s, every_s), self._phi_of_loss(silent_s, every_s))

    def losses(self, beats: int) -> Losses:
        """What was lost of at least so many last heartbeats, if so many are known. An overtaken one counts as lost."""
        sent = lost = holes = 0
        for gap in reversed(self._gaps):
            if sent >= beats:
                break
            sent, lost, holes = sent + gap.steps, lost + gap.steps - 1, holes + (gap.steps > 1)
        return Losses(sent, lost, holes)

    def arrivals(self) -> Arrivals:
        return Arrivals(heard=self._heard, gaps=tuple(self._gaps))

    def _phi_of_delay(self, silent_s: float, every_s: float) -> float:
        count = len(self._gaps)
        mean_s = sum(gap.length_s for gap in self._gaps) / count if count else every_s
        variance = sum((gap.length_s - mean_s) ** 2 for gap in self._gaps) / count if count else 0.0
        deviation_s = max(math.sqrt(variance), _LEAST_DEVIATION * every_s)
        later = math.erfc((silent_s - mean_s) / (deviation_s * math.sqrt(2))) / 2
        return -math.log10(later) if later > 0 else math.inf

    def _phi_of_loss(self, silent_s: float, every_s: float) -> float:
        sent = sum(gap.steps for gap in self._gaps)
        share = (sent - len(self._gaps) + 1) / (sent + 2)  # Laplace's rule of succession
        missing = max(0.0, silent_s / every_s - 1)
        return -missing * math.log10(share)
