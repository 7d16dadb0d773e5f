"""What journals tell, summed up line by line into an attempt's training row. Pure: no queries."""

from __future__ import annotations

import math
from datetime import datetime

from orchestrator.store.sanitize import clean_integer
from orchestrator.store.tables import TrainingRow
from trainer.contract.clock import parse_time
from trainer.contract.exit_record import EventKind, JournalEvent
from trainer.contract.progress import Progress

_NEW_STEP_WEIGHT = 0.2  # of the newest in the recent mean of seconds a step


def time_of(text: str, arrived_at: datetime) -> datetime:
    """A worker's own time, or the arrival where its text is none."""
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        return arrived_at


def told_by_line(row: TrainingRow, line: Progress, arrived_at: datetime) -> None:
    """Take one progress line into account. Lines of an earlier generation count as signs of life only."""
    row.progress_at = arrived_at
    generation = clean_integer(line.generation)
    if generation is None or generation < (row.generation or 0):
        return
    newer = generation > (row.generation or 0)
    row.generation = generation
    row.world_size = clean_integer(line.world_size)
    row.total_steps = clean_integer(line.total_steps) or row.total_steps
    # Rank 0 takes part in everything: while it writes a snapshot, the others may already wait in the next step.
    if line.rank == 0 or newer or row.phase is None:
        row.phase = line.phase.value
    _take_metrics(row, line)
    step = clean_integer(line.step)
    if step is not None:
        _take_step(row, step, generation, time_of(line.at, arrived_at), line.metrics.get("step_s"))


def told_by_event(row: TrainingRow, event: JournalEvent, arrived_at: datetime) -> None:
    """Take one journalled event into account."""
    generation = clean_integer(event.generation)
    if generation is None:
        return
    if event.kind == EventKind.GENERATION_STARTED.value:
        row.formed_at = row.formed_at or time_of(event.at, arrived_at)
        if generation >= (row.generation or 0):
            row.generation = generation
            world_size = event.evidence.get("world_size")
            row.world_size = clean_integer(world_size) if isinstance(world_size, int) else row.world_size
    elif event.kind == EventKind.RESTARTED_IN_PLACE.value and generation > (row.restart_generation or 0):
        # Each agent of the attempt journals the restart of the group; it is one.
        row.restart_generation = generation
        row.restarts += 1
    elif event.kind == EventKind.RESTORED.value:
        row.restored = str(event.evidence.get("name", ""))[:255] or None


def _take_step(row: TrainingRow, step: int, generation: int, at: datetime, step_s: float | None) -> None:
    if row.step is None or row.step_generation is None or generation > row.step_generation:
        row.step, row.step_generation, row.step_at = step, generation, at
    elif step > row.step:
        if step_s is None and row.step_at is not None and at > row.step_at:
            step_s = (at - row.step_at).total_seconds() / (step - row.step)
        if step_s is not None and math.isfinite(step_s):
            row.step_s = _mean(row.step_s, step_s)
        row.step, row.step_at = step, at


def _take_metrics(row: TrainingRow, line: Progress) -> None:
    """Metrics are global values of a step: whoever tells them first."""
    row.loss = _finite(line.metrics.get("loss"), row.loss)
    row.tokens_per_s = _finite(line.metrics.get("tokens_per_s"), row.tokens_per_s)


def _mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _NEW_STEP_WEIGHT * (newest - mean)


def _finite(newest: float | None, known: float | None) -> float | None:
    """The newest value; None where it is no number, which SQLite could not tell from None anyway."""
    if newest is None:
        return known
    return newest if math.isfinite(newest) else None
