"""How much work was done and kept between two events, in closed form. Pure. Times are whole microseconds.

A cycle is `interval_us` of work and then `stall_us` in which all devices wait for the snapshot. The end of the cycle
commits it. Within the interval, copies in memory may stall the devices, too, at equal distances. As in Daly's model,
a generation that restores a snapshot starts a new cycle. One that restores a copy continues its cycle.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    """`copies` divides the interval; 0 means no copies. The last copy of a cycle comes before its snapshot."""

    interval_us: int
    stall_us: int
    copies: int = 0
    copy_stall_us: int = 0

    @property
    def copy_us(self) -> int:
        """Work between two copies. Without copies, between two snapshots."""
        return self.interval_us // max(1, self.copies)

    @property
    def cycle_us(self) -> int:
        return self.reach_us(self.interval_us) + self.stall_us

    def reach_us(self, work_us: int) -> int:
        """Return the time from the start of a cycle until this work of it is done and copied."""
        return work_us + work_us // self.copy_us * self.copy_stall_us

    def stalls_us(self, begin_us: int, end_us: int) -> int:
        """Return the stalls at multiples of the intervals above `begin_us`, up to `end_us` of work."""
        copies = end_us // self.copy_us - begin_us // self.copy_us
        return copies * self.copy_stall_us + end_us // self.interval_us * self.stall_us


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of training: work that a snapshot kept, work that none kept yet, and stalls.

    `copied_us` is the work up to the last copy in memory.
    """

    kept_us: int
    unkept_us: int
    stall_us: int
    copied_us: int = 0

    @property
    def work_us(self) -> int:
        return self.kept_us + self.unkept_us

    @property
    def lasted_us(self) -> int:
        return self.work_us + self.stall_us

    def kept(self) -> Split:
        """Return the same stretch with a snapshot at its end."""
        return self.with_kept(self.work_us)

    def with_kept(self, kept_us: int) -> Split:
        return Split(kept_us, self.work_us - kept_us, self.stall_us, self.copied_us)


@dataclass(frozen=True, slots=True)
class Run:
    """One generation that trains on `devices` from `began_us` on and needs `needed_us` of work to finish.

    `base` is the work of the state that it restored, in device-microseconds. `unkept_us` is the part of it, for each
    device, that memory had and no snapshot: at most one interval.
    """

    began_us: int
    devices: int
    base: int
    needed_us: int
    cadence: Cadence
    unkept_us: int = 0

    @property
    def ends_us(self) -> int:
        """Return when the training ends, including its last snapshot."""
        return self.began_us + lasts_us(self.needed_us, self.cadence, self.unkept_us)

    def reaches_us(self, work: int) -> int | None:
        """Return when the total work reaches `work` device-microseconds. None if it did before or never does."""
        away_us = -(-(work - self.base) // self.devices)
        if not 0 < away_us <= self.needed_us:
            return None
        before_us = self.unkept_us + away_us - 1
        return self.began_us + away_us + self.cadence.stalls_us(self.unkept_us, before_us)

    def split(self, at_us: int) -> Split:
        return split(at_us - self.began_us, self.needed_us, self.cadence, self.unkept_us)

    def done(self, at_us: int) -> int:
        """Return the total work at this time, kept or not, in device-microseconds."""
        return self.base + self.split(at_us).work_us * self.devices

    def kept_at_us(self, at_us: int) -> int:
        """Return when the last snapshot before this time was committed. It must have one."""
        start_us = self.began_us - self.cadence.reach_us(self.unkept_us)
        return start_us + (at_us - start_us) // self.cadence.cycle_us * self.cadence.cycle_us


def split(elapsed_us: int, needed_us: int, cadence: Cadence, unkept_us: int = 0) -> Split:
    """Split the time since a run began. `unkept_us` is the work of its cycle that had been done before."""
    cycles, rest_us = divmod(cadence.reach_us(unkept_us) + elapsed_us, cadence.cycle_us)
    copy_cycle_us = cadence.copy_us + cadence.copy_stall_us
    copies, rest_us = divmod(min(rest_us, cadence.cycle_us - cadence.stall_us), copy_cycle_us)
    before_us = cycles * cadence.interval_us - unkept_us
    copied_us = before_us + copies * cadence.copy_us
    work_us = min(copied_us + min(rest_us, cadence.copy_us), needed_us)
    kept_us = min(max(0, before_us), work_us)
    copied_us = min(max(0, copied_us), work_us) if cadence.copies else 0
    return Split(kept_us, work_us - kept_us, elapsed_us - work_us, copied_us)


def lasts_us(needed_us: int, cadence: Cadence, unkept_us: int = 0) -> int:
    """Return the duration of this much work with a stall after each interval and one at the end."""
    whole_us = unkept_us + needed_us
    snapshots = -(-whole_us // cadence.interval_us)
    copies = whole_us // cadence.copy_us - unkept_us // cadence.copy_us
    return needed_us + snapshots * cadence.stall_us + copies * cadence.copy_stall_us
