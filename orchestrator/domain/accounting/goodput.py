"""Divides a job's device time into bins. Every microsecond of every device is in exactly one bin. Pure.

The whole is the job's life times the devices that it requested. `life.py` lays a life out in stretches without gaps, so
that the bins add up to the whole even if clocks of agents and workers are wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

_MICROSECOND = timedelta(microseconds=1)


class Bin(StrEnum):
    QUEUE = "queue"
    START_UP = "start_up"
    RENDEZVOUS = "rendezvous"
    LOAD = "load"
    COMPILE = "compile"
    PRODUCTIVE = "productive"
    RE_DONE = "re_done"  # the time when the steps were done first
    SNAPSHOT_STALL = "snapshot_stall"
    STALLED = "stalled"
    RECOVERING = "recovering"
    IDLE = "idle"
    NOT_REPORTED = "untold"
    FAILED = "failed"


# A short text for each bin. docs/goodput.md explains them at length.
EXPLAINED: Mapping[Bin, str] = {
    Bin.QUEUE: "Waiting in the queue.",
    Bin.START_UP: "Agents starting and importing.",
    Bin.RENDEZVOUS: "Agents forming the group.",
    Bin.LOAD: "Workers starting and reading a snapshot.",
    Bin.COMPILE: "The first step, beyond the time of a usual one.",
    Bin.PRODUCTIVE: "Steps that count.",
    Bin.RE_DONE: "Steps that a failure lost, and the one that it interrupted.",
    Bin.SNAPSHOT_STALL: "Training paused for a snapshot.",
    Bin.STALLED: "No progress, until it was noticed.",
    Bin.RECOVERING: "From a failure until training resumed.",
    Bin.IDLE: "Suspended, ended, or devices that a smaller group left unused.",
    Bin.NOT_REPORTED: "Workers ran without reporting steps.",
    Bin.FAILED: "Attempts that failed before they reported a step.",
}


_NAMES = {Bin.RE_DONE.value: "re-done", Bin.NOT_REPORTED.value: "not reported"}

UNHELD = (Bin.QUEUE, Bin.IDLE)  # the job had no device then
LOSSES = (Bin.RE_DONE, Bin.STALLED, Bin.RECOVERING, Bin.FAILED)  # what failures cost


def show_bin(name: str) -> str:
    """Return a bin in words: "re-done", "start up"."""
    return _NAMES.get(name, name.replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time that the job spent in one bin with `used` of its `devices`. The other devices were idle.

    `nodes` are those of the used devices, each with its number of them, as far as they are known.
    """

    bin: Bin
    since: datetime
    until: datetime
    devices: int
    used: int
    attempt: int | None = None
    generation: int | None = None
    stall_s: float = 0.0  # of a productive stretch: how long training paused for snapshots
    cause: str | None = None  # of a loss: the failure behind it, named by name_cause
    nodes: Mapping[str, int] = field(default_factory=dict)
    chaos: int | None = None  # of a loss: the number of the requested fault behind it

    @property
    def lasted_us(self) -> int:
        return (self.until - self.since) // _MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Device-microseconds. `whole_us` is computed independently of the bins and equals their sum."""

    bins: Mapping[Bin, int] = field(default_factory=dict)
    whole_us: int = 0

    @property
    def goodput(self) -> float | None:
        """The productive part of the device time that the job held. None if it held none or reported no steps."""
        productive = self.bins.get(Bin.PRODUCTIVE, 0)
        is_known = productive or not self.bins.get(Bin.NOT_REPORTED)
        return productive / self.held_us if self.held_us and is_known else None

    @property
    def lost_us(self) -> int:
        """What failures cost."""
        return sum(self.bins.get(each, 0) for each in LOSSES)

    @property
    def held_us(self) -> int:
        return sum(amount_us for into, amount_us in self.bins.items() if into not in UNHELD)


def add_up(stretches: Sequence[Stretch]) -> Ledger:
    bins: Counter[Bin] = Counter()
    for each in stretches:
        for into, amount_us in take_apart(each):
            bins[into] += amount_us
    return Ledger(bins={each: bins[each] for each in Bin}, whole_us=_count_whole_us(stretches))


def take_apart(stretch: Stretch) -> tuple[tuple[Bin, int], ...]:
    """Divide a stretch's device-microseconds into those of used devices, of snapshot stalls, and of idle devices."""
    stall_us = min(round(stretch.stall_s * 1e6), stretch.lasted_us)
    return (
        (stretch.bin, (stretch.lasted_us - stall_us) * stretch.used),
        (Bin.SNAPSHOT_STALL, stall_us * stretch.used),
        (Bin.IDLE, stretch.lasted_us * (stretch.devices - stretch.used)),
    )


def clip(stretches: Sequence[Stretch], since: datetime, until: datetime) -> tuple[Stretch, ...]:
    """Return the part of the stretches between two times. A stall is spread evenly over its stretch."""
    clipped = []
    for each in stretches:
        begin, end = max(each.since, since), min(each.until, until)
        if begin < end:
            share = (end - begin) / (each.until - each.since)
            clipped.append(replace(each, since=begin, until=end, stall_s=each.stall_s * share))
    return tuple(clipped)


def _count_whole_us(stretches: Sequence[Stretch]) -> int:
    """Compute the whole from the job's beginning, its end, and the times at which its number of devices changed."""
    if not stretches:
        return 0
    changes = [stretches[0], *(after for before, after in pairwise(stretches) if after.devices != before.devices)]
    ends = [*(change.since for change in changes[1:]), stretches[-1].until]
    return sum((end - each.since) // _MICROSECOND * each.devices for each, end in zip(changes, ends, strict=True))
