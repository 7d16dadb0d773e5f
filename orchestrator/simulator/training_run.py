"""Training between two events, in closed form: how much was done, kept, and lost. Pure; whole microseconds.

A cycle is `interval_us` of work and `stall_us` in which all devices wait for the snapshot; its end commits it. The
cycle begins anew with each generation, as Daly's model has it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    interval_us: int
    stall_us: int


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of training: work that a snapshot kept, work that none has kept yet, and stalls."""

    kept_us: int
    unkept_us: int
    stall_us: int

    @property
    def lasted_us(self) -> int:
        return self.kept_us + self.unkept_us + self.stall_us

    def kept(self) -> Split:
        """The same, when a snapshot at its end kept the rest."""
        return Split(self.kept_us + self.unkept_us, 0, self.stall_us)


@dataclass(frozen=True, slots=True)
class Run:
    """One generation that trains on `devices` from `began_us` on, `needed_us` of work away from the end.

    `base`: the work that snapshots had kept by then, in device-microseconds.
    """

    began_us: int
    devices: int
    base: int
    needed_us: int
    cadence: Cadence

    @property
    def ends_us(self) -> int:
        """When it is through, its last snapshot included."""
        return self.began_us + lasts_us(self.needed_us, self.cadence)

    def reaches_us(self, work: int) -> int | None:
        """When so much work (device-microseconds in all) is done; None where that lies behind it or never comes."""
        away_us = -(-(work - self.base) // self.devices)
        if not 0 < away_us <= self.needed_us:
            return None
        stalls = (away_us - 1) // self.cadence.interval_us
        return self.began_us + away_us + stalls * self.cadence.stall_us

    def split(self, at_us: int) -> Split:
        return split(at_us - self.began_us, self.needed_us, self.cadence)

    def done(self, at_us: int) -> int:
        """All work by then, kept or not, in device-microseconds."""
        parts = self.split(at_us)
        return self.base + (parts.kept_us + parts.unkept_us) * self.devices


def split(elapsed_us: int, needed_us: int, cadence: Cadence) -> Split:
    cycles, rest_us = divmod(elapsed_us, cadence.interval_us + cadence.stall_us)
    work_us = min(cycles * cadence.interval_us + min(rest_us, cadence.interval_us), needed_us)
    kept_us = min(cycles * cadence.interval_us, work_us)
    return Split(kept_us, work_us - kept_us, elapsed_us - work_us)


def lasts_us(needed_us: int, cadence: Cadence) -> int:
    """So much work with its stalls: one behind each interval, and one at the end."""
    return needed_us + cadence.stall_us * -(-needed_us // cadence.interval_us)
