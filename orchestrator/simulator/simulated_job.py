"""The true state of a simulated job."""

from __future__ import annotations

from collections import Counter

from orchestrator.domain.job.launch_plan import workers_per_node
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.device_time import DeviceTime
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
        self.cadence = Cadence(us(scenario.interval_s(self.devices)), us(scenario.snapshot_stall_s))
        self.restart_us = us(scenario.restart_s)  # from the submission to the first step
        self.restart_in_place_us = us(scenario.restart_in_place_s)
        self.step_us = us(scenario.step_s)
        self.device_time = DeviceTime(self.devices)
        self.kept = 0  # work that snapshots have kept
        self.faults: Counter[str] = Counter()  # what justifies another attempt, by kind
        self.restarts_in_place = 0

    def resize(self, at_us: int, devices: int) -> None:
        """Change the devices after the owner has scaled the job."""
        if devices != self.devices:
            self.device_time.resize(at_us, devices)
            self.devices = devices


def devices_of(spec: JobSpec) -> int:
    return spec.topology.max_nodes * workers_per_node(spec, 1)
