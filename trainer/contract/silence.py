"""How long a phase may last before its silence is a hang: learned from the job's own times. Pure.

The service and the agent use the same rules. An agent learns from its own workers; the service sees all workers and
gives the agents time to act first.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trainer.contract.progress import Phase, Progress

# The limit of a phase before any was observed, in seconds. It allows for a busy file system, a cold compile cache and a
# first snapshot of hundreds of gigabytes; heartbeat_timeout_s overrides it.
UNSEEN_S: dict[Phase, float] = {
    Phase.RESTORE: 1800.0,
    Phase.COMPILE: 3600.0,
    Phase.DATA: 1800.0,
    Phase.STEP: 600.0,
    Phase.WAITING: 600.0,
    Phase.SNAPSHOT: 1800.0,
    Phase.EVALUATION: 3600.0,
}
# How long the processes of a script that reports no steps may do nothing (trainer/elastic/health/stillness.py).
# Half of gloo's timeout, and longer than shared file systems take to fail over.
STILL_S = 900.0
# Once observed: a multiple of the median or of the longest, whichever is more, and never less than the shortest.
_TIMES_TYPICAL = 20.0
_TIMES_LONGEST = 4.0
SHORTEST_S = 120.0  # of the phases of a step; no learned limit is shorter
_SHORTEST_OF_OTHERS_S = 600.0
STEP_PHASES = (Phase.STEP, Phase.WAITING)
_MOST_S = 7 * 86400.0  # no phase lasts longer: the clock jumped
_ENOUGH = 5  # observations, before they count
_REMEMBERED = 32  # durations of one phase
_WARM_UP = 2  # steps of a generation that do not count: caches fill, kernels are chosen


@dataclass(frozen=True)
class PhaseTime:
    """How long a phase took lately: the number of observations, the median and the longest in seconds."""

    count: int
    typical_s: float
    longest_s: float


@dataclass
class PhaseTimes:
    """How long the phases of one rank took, by its own clock. The service keeps rank 0's, which is in all phases."""

    durations: dict[str, list[float]] = field(default_factory=dict)  # the latest ones by phase, in seconds
    counts: dict[str, int] = field(default_factory=dict)
    phase: str | None = None  # the current one
    since: datetime | None = None  # when it began
    step: int | None = None
    generation: int = 0
    steps_begun: int = 0  # in this generation

    def enter(self, line: Progress, at: datetime) -> None:
        """Begin the phase of a line, and end the one before."""
        if line.generation != self.generation:
            self.generation, self.steps_begun, self.phase = line.generation, 0, None
        same = line.phase.value == self.phase and line.step == self.step
        if line.phase is Phase.WAITING or same:
            return  # still within the step
        if self.phase is not None and self.since is not None and at > self.since:
            self._remember(self.phase, (at - self.since).total_seconds())
        self.steps_begun += line.phase is Phase.STEP
        self.phase, self.since, self.step = line.phase.value, at, line.step

    def summary(self) -> dict[str, PhaseTime]:
        return {
            phase: PhaseTime(self.counts[phase], statistics.median(latest), max(latest))
            for phase, latest in self.durations.items()
        }

    def _remember(self, phase: str, duration_s: float) -> None:
        if duration_s > _MOST_S or (phase == Phase.STEP.value and self.steps_begun <= _WARM_UP):
            return
        self.counts[phase] = self.counts.get(phase, 0) + 1
        self.durations[phase] = [*self.durations.get(phase, []), round(duration_s, 4)][-_REMEMBERED:]


def limit_s(
    phase: Phase, phase_times: Mapping[str, PhaseTime], *, startup_timeout_s: float, heartbeat_timeout_s: float | None
) -> float | None:
    """How long a phase may last, in seconds; None for DONE and NOTE. `heartbeat_timeout_s` None: learn it."""
    if phase in (Phase.DONE, Phase.NOTE):
        return None
    if phase is Phase.START:
        return startup_timeout_s
    learned = _learned_s(phase, phase_times)
    if heartbeat_timeout_s is None:
        return learned
    # The owner's limit is meant for steps. A snapshot or an evaluation keeps its own if that is longer.
    return heartbeat_timeout_s if phase in STEP_PHASES else max(heartbeat_timeout_s, learned)


def _learned_s(phase: Phase, phase_times: Mapping[str, PhaseTime]) -> float:
    observed = phase_times.get(Phase.STEP.value if phase is Phase.WAITING else phase.value)
    unseen_s = UNSEEN_S[phase]
    if observed is None or observed.count < (_ENOUGH if phase in STEP_PHASES else 1):
        return unseen_s
    shortest_s = SHORTEST_S if phase in STEP_PHASES else _SHORTEST_OF_OTHERS_S
    return min(_MOST_S, max(shortest_s, _TIMES_TYPICAL * observed.typical_s, _TIMES_LONGEST * observed.longest_s))
