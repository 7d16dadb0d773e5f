"""How much work was done and kept between two events, in closed form. Pure. Times are whole microseconds.

A cycle is `interval_us` of work and then `stall_us` in which all devices wait for the snapshot. The end of the cycle
commits it. As in Daly's model, each generation starts a new cycle.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    interval_us: int
    stall_us: int


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of training: work that a snapshot kept, work that none kept yet, and stalls."""

    kept_us: int
    unkept_us: int
    stall_us: int

    @property
    def lasted_us(self) -> int:
        return self.kept_us + self.unkept_us + self.stall_us

    def kept(self) -> Split:
        """Return the same stretch with a snapshot at its end."""
        return Split(self.kept_us + self.unkept_us, 0, self.stall_us)


@dataclass(frozen=True, slots=True)
class Run:
    """One generation that trains on `devices` from `began_us` on and needs `needed_us` of work to finish.

    `base` is the work that snapshots had kept at its start, in device-microseconds.
    """

    began_us: int
    devices: int
    base: int
    needed_us: int
    cadence: Cadence

    @property
    def ends_us(self) -> int:
        """Return when the training ends, including its last snapshot."""
        return self.began_us + lasts_us(self.needed_us, self.cadence)

    def reaches_us(self, work: int) -> int | None:
        """Return when the total work reaches `work` device-microseconds. None if it did before or never does."""
        away_us = -(-(work - self.base) // self.devices)
        if not 0 < away_us <= self.needed_us:
            return None
        stalls = (away_us - 1) // self.cadence.interval_us
        return self.began_us + away_us + stalls * self.cadence.stall_us

    def split(self, at_us: int) -> Split:
        return split(at_us - self.began_us, self.needed_us, self.cadence)

    def done(self, at_us: int) -> int:
        """Return the total work at this time, kept or not, in device-microseconds."""
        parts = self.split(at_us)
        return self.base + (parts.kept_us + parts.unkept_us) * self.devices


def split(elapsed_us: int, needed_us: int, cadence: Cadence) -> Split:
    cycles, rest_us = divmod(elapsed_us, cadence.interval_us + cadence.stall_us)
    work_us = min(cycles * cadence.interval_us + min(rest_us, cadence.interval_us), needed_us)
    kept_us = min(cycles * cadence.interval_us, work_us)
    return Split(kept_us, work_us - kept_us, elapsed_us - work_us)


def lasts_us(needed_us: int, cadence: Cadence) -> int:
    """Return the duration of this much work with a stall after each interval and one at the end."""
    return needed_us + cadence.stall_us * -(-needed_us // cadence.interval_us)
