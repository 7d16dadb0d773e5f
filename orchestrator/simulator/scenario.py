"""The parameters of a simulation: the cluster, its failures and its jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.domain.errors import Refused
from orchestrator.simulator.failure_traces import TRACES, WORKER_SHARE
from orchestrator.simulator.memory_tier import MemoryTier
from orchestrator.simulator.virtual_clock import us


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`nodes` is topology.nodes of each job. None means the whole cluster for one job, and mixed sizes for many."""

    gpus: int
    mtbf_h: float
    days: float
    seed: int = 1
    trace: str = "exponential"
    gpus_per_node: int = 8
    spares: int | None = None  # nodes beyond `gpus`; None means unlimited
    jobs: int = 1
    nodes: str | None = None
    job_hours: float | None = None  # a job's training without failures, a mean for many jobs; None means endless
    snapshot_stall_s: float = 5.0
    snapshot_interval_s: float | None = None  # None means Young's interval for the job's failure rate
    restart_s: float = 90.0
    restart_in_place_s: float = 20.0
    repair_h: float = 24.0
    step_s: float = 10.0
    worker_share: float | None = None  # failures that spare the node; None means WORKER_SHARE with copies, else none
    memory: MemoryTier | None = None  # None means no copies in memory
    pass_pause_s: float = 0.0  # the minimum time between two passes of the supervisor
    without: tuple[str, ...] = ()  # rules to leave out of the policy

    @property
    def node_count(self) -> int:
        return self.gpus // self.gpus_per_node

    @property
    def days_us(self) -> int:
        return us(self.days * 86400)

    @property
    def repair_us(self) -> int | None:
        """Return None if spares are unlimited, because another node has taken the place of a failed one for good."""
        return None if self.spares is None else us(self.repair_h * 3600)

    @property
    def devices_of_each(self) -> int | None:
        """Return the devices of each job. None unless all jobs have one fixed size."""
        if self.trace == "mixed":
            return None
        if self.nodes is None:
            return self.gpus if self.jobs == 1 else None
        least, _, most = self.nodes.partition(":")
        return int(least) * self.gpus_per_node if most in ("", least) else None

    def mtbf_s(self, devices: int) -> float:
        """Return the mean time between failures of a job on this many devices."""
        return self.mtbf_h * 3600 * self.gpus / devices

    @property
    def workers_share(self) -> float:
        """Return the share of failures that spare the node."""
        if self.worker_share is not None:
            return self.worker_share
        return 0.0 if self.memory is None else WORKER_SHARE

    def disk_share(self, devices: int) -> float:
        """Return the share of failures after which only disk has the state.

        With buddies it is the probability that a node is lost, and one of its ring before the next copy. To first
        order this is their rate, times the time of a restart and of one interval.
        """
        nodes_share = 1 - self.workers_share
        if self.memory is None or self.memory.buddies < 2:
            return nodes_share
        exposed_s = self.memory.restart_s + self.memory.interval_s + self.memory.stall_s
        ring_share = (self.memory.buddies - 1) * self.gpus_per_node / devices
        return nodes_share * min(1.0, nodes_share * ring_share * exposed_s / self.mtbf_s(devices))

    def interval_s(self, devices: int) -> float:
        """Return the work between two snapshots. As in the trainer, copies in memory do not change Young's interval."""
        if self.snapshot_interval_s is not None:
            return self.snapshot_interval_s
        return young_interval_s(self.snapshot_stall_s, self.mtbf_s(devices))

    def copies(self, devices: int) -> int:
        """Return how many copies are made for each snapshot, at least one. The interval of copies is rounded to fit."""
        return 0 if self.memory is None else max(1, round(self.interval_s(devices) / self.memory.interval_s))

    def without_memory(self) -> Scenario:
        """Return the same failures without copies in memory."""
        return replace(self, memory=None, worker_share=self.workers_share)

    def check(self) -> None:
        """Raises Refused."""
        if self.gpus % self.gpus_per_node:
            raise Refused(f"--gpus {self.gpus} is not a multiple of {self.gpus_per_node} GPUs per node")
        if self.trace not in TRACES:
            raise Refused(f"--trace {self.trace} is unknown; known: {', '.join(TRACES)}")
        if self.memory is not None and self.memory.buddies == 1:
            raise Refused("--buddies 1 is no ring: use 2 or more, or 0 for none")


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Return the optimal work between two snapshots, to first order: sqrt(2 w M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974)
    530.
    """
    return math.sqrt(2 * stall_s * mtbf_s)
