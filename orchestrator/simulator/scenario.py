"""What is simulated: the cluster, its failures, and how many jobs of which size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.domain.errors import Refused
from orchestrator.simulator.failure_traces import TRACES
from orchestrator.simulator.virtual_clock import us


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`nodes`: of each job, as a spec has it; None: all of the cluster for one job, mixed sizes for many."""

    gpus: int
    mtbf_h: float
    days: float
    seed: int = 1
    trace: str = "exponential"
    gpus_per_node: int = 8
    spares: int | None = None  # nodes beyond `gpus`; None: as many as are needed
    jobs: int = 1
    nodes: str | None = None
    job_hours: float | None = None  # of training without failures, the mean of many jobs; None: all of the time
    snapshot_stall_s: float = 5.0
    snapshot_interval_s: float | None = None  # None: Young's, from the job's share of the failures
    restart_s: float = 90.0
    restart_in_place_s: float = 20.0
    repair_h: float = 24.0
    step_s: float = 10.0
    pass_pause_s: float = 0.0  # the least time between two passes of the supervisor
    without: tuple[str, ...] = ()  # rules of the policy

    @property
    def node_count(self) -> int:
        return self.gpus // self.gpus_per_node

    @property
    def days_us(self) -> int:
        return us(self.days * 86400)

    @property
    def repair_us(self) -> int | None:
        """None where spares are unlimited: another node has taken a failed one's place, and it must not come back."""
        return None if self.spares is None else us(self.repair_h * 3600)

    @property
    def devices_of_each(self) -> int | None:
        """Of each job, where all have one fixed size."""
        if self.trace == "mixed":
            return None
        if self.nodes is None:
            return self.gpus if self.jobs == 1 else None
        least, _, most = self.nodes.partition(":")
        return int(least) * self.gpus_per_node if most in ("", least) else None

    def mtbf_s(self, devices: int) -> float:
        """Of a job on so many of the devices."""
        return self.mtbf_h * 3600 * self.gpus / devices

    def interval_s(self, devices: int) -> float:
        if self.snapshot_interval_s is not None:
            return self.snapshot_interval_s
        return young_interval_s(self.snapshot_stall_s, self.mtbf_s(devices))

    def check(self) -> None:
        """Raises Refused."""
        if self.gpus % self.gpus_per_node:
            raise Refused(f"--gpus {self.gpus} is no multiple of {self.gpus_per_node} GPUs per node")
        if self.trace not in TRACES:
            raise Refused(f"--trace {self.trace} is unknown; known: {', '.join(TRACES)}")


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between two snapshots that loses least, to first order: sqrt(2 w M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974)
    530.
    """
    return math.sqrt(2 * stall_s * mtbf_s)
