"""Where a job's device time went: every microsecond of every device is in exactly one bin. Pure.

The whole is the job's life times the devices that it asks for; devices that an elastic job goes without are idle.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from orchestrator.simulator.rehearsal.training import Split


class Bin(StrEnum):
    QUEUE = "queue"  # waits for its turn
    START_UP = "start_up"  # its first attempt starts, or the first after its owner held it
    PRODUCTIVE = "productive"  # work that a snapshot has kept
    RE_DONE = "re_done"  # work that was lost, and is done again
    SNAPSHOT_STALL = "snapshot_stall"
    STALLED = "stalled"  # hangs, unnoticed or being ended
    RECOVERING = "recovering"  # from the end of one attempt, or generation, until the next one trains
    IDLE = "idle"  # suspended, or finished and not yet seen; devices that an elastic job goes without


class Ledger:
    """The books of one job, in device-microseconds."""

    def __init__(self, at_us: int, devices: int) -> None:
        self.bins: Counter[Bin] = Counter()
        self.closed = False
        self._bin = Bin.QUEUE
        self._at_us = at_us
        self._devices = devices
        self._whole = 0
        self._changed_us = at_us

    def enter(self, at_us: int, following: Bin) -> None:
        """What was until now is booked; what follows goes to another bin."""
        if self.closed:
            return
        self.bins[self._bin] += (at_us - self._at_us) * self._devices
        self._at_us, self._bin = at_us, following

    def book_training(self, at_us: int, split: Split, devices: int, following: Bin) -> None:
        """The time since the last entry was training, on so many of the devices."""
        lasted_us = at_us - self._at_us
        if split.lasted_us != lasted_us:
            raise AssertionError(f"{split} is not what happened in {lasted_us} us")
        self.bins[Bin.PRODUCTIVE] += split.kept_us * devices
        self.bins[Bin.RE_DONE] += split.unkept_us * devices
        self.bins[Bin.SNAPSHOT_STALL] += split.stall_us * devices
        self.bins[Bin.IDLE] += lasted_us * (self._devices - devices)
        self._at_us, self._bin = at_us, following

    def resize(self, at_us: int, devices: int) -> None:
        """From now on the job asks for another number of devices."""
        self.enter(at_us, self._bin)
        self._whole += (at_us - self._changed_us) * self._devices
        self._changed_us, self._devices = at_us, devices

    def close(self, at_us: int) -> None:
        self.resize(at_us, self._devices)
        self.closed = True

    def reopen(self, at_us: int) -> None:
        """The job's owner wants more of it; what lay between was no part of its life."""
        self.closed = False
        self._at_us = self._changed_us = at_us
        self._bin = Bin.QUEUE

    @property
    def whole(self) -> int:
        """Life times devices, counted apart from the bins."""
        return self._whole
