"""Where a job's device time went: every microsecond of every device is in exactly one bin. Pure.

The total is the job's life times the devices that it asks for; devices that an elastic job goes without are idle.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.simulator.training_run import Split

# Those of the service's bins that a simulation tells apart. START_UP holds all of a job's first start, and a later one
# is RECOVERING.
BINS = (
    Bin.QUEUE,
    Bin.START_UP,
    Bin.PRODUCTIVE,
    Bin.RE_DONE,
    Bin.SNAPSHOT_STALL,
    Bin.STALLED,
    Bin.RECOVERING,
    Bin.IDLE,
)


class DeviceTime:
    """Of one job, in device-microseconds. `total` is counted apart from the bins."""

    def __init__(self, devices: int) -> None:
        self.bins: Counter[Bin] = Counter()
        self.total = 0
        self.closed = False
        self._bin = Bin.QUEUE
        self._since_us = 0
        self._devices = devices
        self._resized_us = 0

    def enter(self, at_us: int, following: Bin) -> None:
        """Count the time until now; what follows goes to another bin."""
        if self.closed:
            return
        self.bins[self._bin] += (at_us - self._since_us) * self._devices
        self._since_us, self._bin = at_us, following

    def add_training(self, at_us: int, split: Split, devices: int, following: Bin) -> None:
        """The time since the last entry was training, on so many of the devices."""
        lasted_us = at_us - self._since_us
        if split.lasted_us != lasted_us:
            raise AssertionError(f"{split} is not what happened in {lasted_us} us")
        self.bins[Bin.PRODUCTIVE] += split.kept_us * devices
        self.bins[Bin.RE_DONE] += split.unkept_us * devices
        self.bins[Bin.SNAPSHOT_STALL] += split.stall_us * devices
        self.bins[Bin.IDLE] += lasted_us * (self._devices - devices)
        self._since_us, self._bin = at_us, following

    def resize(self, at_us: int, devices: int) -> None:
        """From now on the job asks for another number of devices."""
        self.enter(at_us, self._bin)
        self.total += (at_us - self._resized_us) * self._devices
        self._resized_us, self._devices = at_us, devices

    def close(self, at_us: int) -> None:
        self.resize(at_us, self._devices)
        self.closed = True

    def reopen(self, at_us: int) -> None:
        """A retry begins; the time in between was no part of the job's life."""
        self.closed = False
        self._since_us = self._resized_us = at_us
        self._bin = Bin.QUEUE
