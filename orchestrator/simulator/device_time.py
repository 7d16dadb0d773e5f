"""Account for a job's device time: each microsecond of each device is in exactly one bin. Pure.

The total is the job's lifetime times the devices that it requests. Devices that an elastic job does not get are idle.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.simulator.training_run import Split

# The bins of the service that a simulation distinguishes. START_UP is a job's first start. A later start is RECOVERING.
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
    """The account of one job in device-microseconds. `total` is counted independently of the bins."""

    def __init__(self, devices: int) -> None:
        self.bins: Counter[Bin] = Counter()
        self.total = 0
        self.closed = False
        self._bin = Bin.QUEUE
        self._since_us = 0
        self._devices = devices
        self._resized_us = 0

    def enter(self, at_us: int, following: Bin) -> None:
        """Close the current bin at this time and start another one."""
        if self.closed:
            return
        self.bins[self._bin] += (at_us - self._since_us) * self._devices
        self._since_us, self._bin = at_us, following

    def add_training(self, at_us: int, split: Split, devices: int, following: Bin) -> None:
        """Close a stretch of training on `devices` of the devices, and start another bin."""
        lasted_us = at_us - self._since_us
        if split.lasted_us != lasted_us:
            raise AssertionError(f"{split} does not add up to {lasted_us} us")
        self.bins[Bin.PRODUCTIVE] += split.kept_us * devices
        self.bins[Bin.RE_DONE] += split.unkept_us * devices
        self.bins[Bin.SNAPSHOT_STALL] += split.stall_us * devices
        self.bins[Bin.IDLE] += lasted_us * (self._devices - devices)
        self._since_us, self._bin = at_us, following

    def discard(self, work: int) -> None:
        """Count device-microseconds of work as re-done. They had counted as productive, because memory held them."""
        self.bins[Bin.PRODUCTIVE] -= work
        self.bins[Bin.RE_DONE] += work

    def resize(self, at_us: int, devices: int) -> None:
        """Change the number of devices that the job requests."""
        self.enter(at_us, self._bin)
        self.total += (at_us - self._resized_us) * self._devices
        self._resized_us, self._devices = at_us, devices

    def close(self, at_us: int) -> None:
        self.resize(at_us, self._devices)
        self.closed = True

    def reopen(self, at_us: int) -> None:
        """Continue the account for a retry. The time since the end of the job does not count."""
        self.closed = False
        self._since_us = self._resized_us = at_us
        self._bin = Bin.QUEUE
