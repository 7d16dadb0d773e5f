"""The true state of a simulated job."""

from __future__ import annotations

from collections import Counter

from orchestrator.domain.accounting.restarts import Source
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.device_time import DeviceTime
from orchestrator.simulator.memory_tier import Copies
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.training_run import Cadence
from orchestrator.simulator.virtual_clock import us


class SimulatedJob:
    """A job that is submitted when the simulation starts. Work is in device-microseconds."""

    def __init__(self, spec: JobSpec, work: int, scenario: Scenario, *, fails_at: int | None = None) -> None:
        self.id = spec.name
        self.spec = spec
        self.work = work
        self.fails_at = fails_at  # the work at which its program fails each time
        self.devices = devices_of(spec)  # as many as it requests
        self.cadence = _build_cadence(scenario, self.devices)
        self.restart_us = us(scenario.restart_s)  # from the submission to the first step
        self.restart_in_place_us = us(scenario.restart_in_place_s)
        self.step_us = us(scenario.step_s)
        self.device_time = DeviceTime(self.devices)
        self.kept = 0  # work that snapshots have kept
        self.restored = 0  # work of the state that the next generation restores
        self.copies = None if scenario.memory is None else Copies(scenario.memory)
        self.source = Source.DISK  # where the next generation finds its state
        self.sources: Counter[str] = Counter()  # restarts, by source
        self.faults: Counter[str] = Counter()  # what justifies another attempt, by kind
        self.restarts_in_place = 0

    @property
    def unkept_us(self) -> int:
        """The work of each device that only memory holds."""
        return min((self.restored - self.kept) // self.devices, self.cadence.interval_us)

    def restart_after_us(self, from_disk_us: int) -> int:
        """Return the time for the next restart, which is `from_disk_us` unless memory has the state."""
        if self.copies is None or self.source is Source.DISK:
            return from_disk_us
        return us(self.copies.tier.restart_s)

    def lose_memory(self) -> None:
        """Fall back to the newest snapshot on disk."""
        if self.copies is not None:
            self.copies.forget()
        self.device_time.discard(self.restored - self.kept)
        self.restored, self.source = self.kept, Source.DISK

    def resize(self, at_us: int, devices: int) -> None:
        """Change the devices after the owner has scaled the job."""
        if devices != self.devices:
            self.device_time.resize(at_us, devices)
            self.devices = devices


def _build_cadence(scenario: Scenario, devices: int) -> Cadence:
    stall_us = us(scenario.snapshot_stall_s)
    if scenario.memory is None:
        return Cadence(us(scenario.interval_s(devices)), stall_us)
    copies = scenario.copies(devices)
    copy_us = us(scenario.interval_s(devices) / copies)
    return Cadence(copies * copy_us, stall_us, copies, us(scenario.memory.stall_s))


def devices_of(spec: JobSpec) -> int:
    return spec.topology.max_nodes * spec.topology.count_workers(1)
