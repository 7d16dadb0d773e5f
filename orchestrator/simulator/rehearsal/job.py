"""A simulated job: what it really has done, whatever the service believes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.domain.observation.observation import ReplicaSighting
from orchestrator.simulator.rehearsal.goodput import Ledger
from orchestrator.simulator.rehearsal.training import Cadence


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Of the simulated machinery, in microseconds."""

    restart_us: int  # from the submission to the first step
    in_place_us: int  # the same within an attempt
    step_us: int
    tell_us: int  # how often the progress is told while nothing happens


@dataclass(slots=True, kw_only=True)
class SimulatedJob:
    """What a job really has done. Work is counted in device-microseconds."""

    id: str
    devices: int  # all that it asks for
    work: int
    cadence: Cadence
    timing: Timing
    ledger: Ledger
    kept: int = 0  # by snapshots
    crash_at: int | None = None  # work at which its program fails
    faults: Counter[str] = field(default_factory=Counter)  # what may cost it an attempt, by kind
    in_place: int = 0  # restarts
    seen: list[ReplicaSighting] = field(default_factory=list)  # how its living replicas look, by number
