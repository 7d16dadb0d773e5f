"""Sums up the journals of an attempt line by line, in any order. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.domain.observation.observation import Training
from trainer.contract.clock import parse_time
from trainer.contract.exit_record import GROUP_CHANGES, EventKind, JournalEvent
from trainer.contract.progress import Phase, Progress
from trainer.contract.silence import PhaseTimes

_NEW_STEP_WEIGHT = 0.2  # of the newest step in the moving mean of `step_s`
# Readers of JSON round larger numbers (RFC 8259, section 6), and what a database computes of these fits into 64 bits.
_LARGEST = 2**53 - 1
LONGEST_S = 1e8  # a longer step or pause, three years, is no measurement


@dataclass(slots=True)
class TrainingSummary:
    """`add_line` and `add_event` change it in place."""

    generation: int | None = None
    world_size: int | None = None
    formed_at: datetime | None = None
    progress_at: datetime | None = None  # when the newest line arrived, by the service's clock
    heard_at: datetime | None = None  # when the newest report arrived, even an empty one
    phase: str | None = None
    step: int | None = None
    step_generation: int | None = None  # the generation of `step`; a new one may begin at an earlier step
    step_at: datetime | None = None  # when `step` was reached, by the worker's clock
    total_steps: int | None = None
    step_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    restarts: int = 0
    shrinks: int = 0
    resized_at: datetime | None = None  # when the newest change of size arrived
    changed_generation: int = 0  # the newest change that was counted, because every agent journals it
    restored: str | None = None
    snapshots: int = 0  # snapshots that this attempt committed
    began_step: int | None = None  # the earliest step that a generation restored
    kept_step: int | None = None  # the step of its newest snapshot
    kept_at: datetime | None = None  # when it was committed, by the worker's clock
    phase_times: PhaseTimes = field(default_factory=PhaseTimes)

    def training(self) -> Training:
        return Training(
            generation=self.generation,
            world_size=self.world_size,
            step=self.step,
            total_steps=self.total_steps,
            formed_at=self.formed_at,
            progress_at=self.progress_at,
            heard_at=self.heard_at,
            phase=self.phase,
            step_s=self.step_s,
            restarts=self.restarts,
            shrinks=self.shrinks,
            resized_at=self.resized_at,
            restored=self.restored,
            snapshots=self.snapshots,
            began_step=self.began_step,
            kept_step=self.kept_step,
            kept_at=self.kept_at,
            phase_times=self.phase_times.summary(),
        )

    def add_line(self, line: Progress, arrived_at: datetime) -> None:
        """Add a progress line.

        A line of an earlier generation counts only as a sign of life. A note of measurements is no sign of life.
        """
        is_note = line.phase is Phase.NOTE
        self.progress_at = self.progress_at if is_note else arrived_at
        generation = fitting(line.generation)
        if generation is None or generation < (self.generation or 0):
            return
        newer = generation > (self.generation or 0)
        self.generation = generation
        self.world_size = fitting(line.world_size)
        self.total_steps = fitting(line.total_steps) or self.total_steps
        # Rank 0 takes part in everything. While it writes a snapshot, the others may already wait in the next step.
        if not is_note and (line.rank == 0 or newer or self.phase is None):
            self.phase = line.phase.value
        # Metrics are global values of a step, so any rank may report them.
        self.loss = _finite(line.metrics.get("loss"), self.loss)
        self.tokens_per_s = _finite(line.metrics.get("tokens_per_s"), self.tokens_per_s)
        at, step = time_of(line.at, arrived_at), fitting(line.step)
        self.formed_at = self.formed_at or at  # a worker that reports shows that the group has formed
        if step is not None:
            self._take_step(step, generation, at, line.metrics.get("step_s"))
        if line.rank == 0 and not is_note:
            self.phase_times.enter(line, at)

    def add_event(self, event: JournalEvent, arrived_at: datetime) -> None:
        """Add a journaled event."""
        generation = fitting(event.generation)
        if generation is None:
            return
        if self.progress_at is not None:  # a sign of life
            self.progress_at = arrived_at
        if event.kind == EventKind.GENERATION_STARTED.value:
            self.formed_at = self.formed_at or time_of(event.at, arrived_at)
            if self.phase is not None and generation > (self.generation or 0):
                self.phase = Phase.START.value
            if generation >= (self.generation or 0):
                self.generation = generation
                world_size = event.evidence.get("world_size")
                self.world_size = fitting(world_size) if isinstance(world_size, int) else self.world_size
        elif event.kind in GROUP_CHANGES and generation > self.changed_generation:
            self.changed_generation = generation
            # An event with a reason is a change of the group after which no worker had failed.
            self.restarts += event.kind == EventKind.RESTARTED_IN_PLACE.value and not event.evidence.get("because")
            self.shrinks += event.kind == EventKind.GROUP_SHRUNK.value
            if event.kind != EventKind.RESTARTED_IN_PLACE.value:
                self.resized_at = arrived_at
        elif event.kind == EventKind.SNAPSHOT_COMMITTED.value:
            self.snapshots += 1
            step = _step_of(event)
            if step is not None and (self.kept_step is None or step > self.kept_step):
                self.kept_step, self.kept_at = step, time_of(event.at, arrived_at)
        elif event.kind == EventKind.RESTORED.value:
            self.restored = str(event.evidence.get("name", ""))[:255] or None
            step = _step_of(event)
            if step is not None:
                self.began_step = step if self.began_step is None else min(step, self.began_step)

    def _take_step(self, step: int, generation: int, at: datetime, step_s: float | None) -> None:
        if self.step is None or self.step_generation is None or generation > self.step_generation:
            self.step, self.step_generation, self.step_at = step, generation, at
        elif step > self.step:
            if step_s is None and self.step_at is not None and at > self.step_at:
                step_s = (at - self.step_at).total_seconds() / (step - self.step)
            if step_s is not None and 0 <= step_s <= LONGEST_S:
                self.step_s = _mean(self.step_s, step_s)
            self.step, self.step_at = step, at


def time_of(text: str, arrived_at: datetime) -> datetime:
    """Return the time that a worker reported, or the arrival if the text is not a time."""
    try:
        return parse_time(text)
    except ValueError:
        return arrived_at


def fitting(value: int | None) -> int | None:
    """Return None for a number beyond 53 bits, so that one wrong number does not lose the other values."""
    return value if value is not None and -_LARGEST <= value <= _LARGEST else None


def _step_of(event: JournalEvent) -> int | None:
    step = event.evidence.get("step")
    return fitting(step) if isinstance(step, int) and not isinstance(step, bool) else None


def _mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _NEW_STEP_WEIGHT * (newest - mean)


def _finite(newest: float | None, known: float | None) -> float | None:
    """Return the newest value, or None if it is not finite. SQLite stores NaN as NULL anyway."""
    if newest is None:
        return known
    return newest if math.isfinite(newest) else None
