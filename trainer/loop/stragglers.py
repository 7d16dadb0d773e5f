"""Find slow ranks: compare each rank's own time for a step with that of the others. Pure.

Own time is computing and waiting for data, without waiting for peers. Every few steps all ranks share their times in
the all-reduce that each step makes anyway.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

EVERY_STEPS = 10
SLOW_RATIO = 1.3
LEAST_WINDOWS, LEAST_S = 3, 60.0  # a rank is slow after this many windows and seconds
_WARM_UP_STEPS = 2  # caches fill, kernels are chosen
_PLACES = 2  # computing, data


class OwnTimes:
    """The times that one rank shares."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._steps = -_WARM_UP_STEPS
        self._computed_s = self._data_s = 0.0

    def add(self, computed_s: float, data_s: float) -> None:
        """Add a step: seconds of computing, and of waiting for data."""
        self._steps += 1
        if self._steps > 0:
            self._computed_s += computed_s
            self._data_s += data_s

    def share(self, step: int) -> tuple[float, ...]:
        """This rank's part of the all-reduce of step `step` (from 1): nothing, or two places for each rank.

        Its own places have the mean times since it last shared them, the others are 0. Equal length on every rank.
        """
        if step % EVERY_STEPS or self._world_size == 1:
            return ()
        places = [0.0] * (_PLACES * self._world_size)
        if self._steps > 0:
            first = _PLACES * self._rank
            places[first : first + _PLACES] = [self._computed_s / self._steps, self._data_s / self._steps]
            self._steps, self._computed_s, self._data_s = 0, 0.0, 0.0
        return tuple(places)


@dataclass(frozen=True)
class Standing:
    """One rank's own time for a step, in seconds, and how many times the lower median of all ranks it is."""

    rank: int
    computed_s: float
    data_s: float
    ratio: float

    def __str__(self) -> str:
        parts = f"{self.computed_s:.3g} s computing, {self.data_s:.3g} s waiting for data"
        return f"rank {self.rank} takes {self.ratio:.1f} times as long for its own part of a step as others: {parts}"


def rank_standings(places: Sequence[float]) -> list[Standing]:
    """The standing of each rank, from the shared times. Empty if the times of a rank are missing."""
    times = list(zip(places[0::_PLACES], places[1::_PLACES], strict=True))
    own = [computed_s + data_s for computed_s, data_s in times]
    if not own or min(own) <= 0:
        return []
    median = statistics.median_low(own)  # of two ranks, the faster
    return [Standing(rank, *times[rank], ratio=own[rank] / median) for rank in range(len(own))]


@dataclass
class Stragglers:
    """Remembers since when ranks are slow, and reports each once."""

    _slow_since: dict[int, tuple[float, int]] = field(default_factory=dict)  # by rank: time, and windows since
    _reported: set[int] = field(default_factory=set)

    def look(self, standings: Sequence[Standing], now: float) -> list[Standing]:
        """Ranks that are slow for long enough and not yet reported. `now` is seconds of a monotonic clock."""
        slow = {standing.rank: standing for standing in standings if standing.ratio >= SLOW_RATIO}
        self._slow_since = {
            rank: (since, looks + 1) for rank in slow for since, looks in [self._slow_since.get(rank, (now, 0))]
        }
        lasting = [
            rank
            for rank, (since, looks) in self._slow_since.items()
            if looks >= LEAST_WINDOWS and now - since >= LEAST_S and rank not in self._reported
        ]
        self._reported.update(lasting)
        return [slow[rank] for rank in lasting]
