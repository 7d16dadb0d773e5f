"""What journals tell of an attempt, summed up line by line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from orchestrator.domain.observation import Training
from trainer.contract.clock import parse_time
from trainer.contract.exit_record import EventKind, JournalEvent
from trainer.contract.progress import Progress


@dataclass(frozen=True, slots=True)
class Told:
    training: Training = field(default_factory=Training)
    restart_generation: int = 0  # the last one that was journalled as a restart: each agent tells of it


def told_by_line(told: Told, line: Progress, arrived_at: datetime) -> Told:
    """Take one progress line into account. Lines of an earlier generation count as signs of life only."""
    known = told.training
    if line.generation < (known.generation or 0):
        return replace(told, training=replace(known, progress_at=arrived_at))
    newer = line.generation > (known.generation or 0)
    step = line.step if newer or known.step is None else max(known.step, line.step or 0)
    training = replace(
        known,
        generation=line.generation,
        step=step,
        total_steps=line.total_steps or known.total_steps,
        progress_at=arrived_at,
        phase=line.phase.value,
        step_s=line.metrics.get("step_s", known.step_s),
    )
    return replace(told, training=training)


def told_by_event(told: Told, event: JournalEvent) -> Told:
    """Take one journalled event into account."""
    known = told.training
    if event.kind == EventKind.GENERATION_STARTED.value:
        generation = max(event.generation, known.generation or 0)
        formed_at = known.formed_at or parse_time(event.at)
        return replace(told, training=replace(known, formed_at=formed_at, generation=generation))
    if event.kind == EventKind.RESTARTED_IN_PLACE.value and event.generation > told.restart_generation:
        return Told(replace(known, restarts=known.restarts + 1), event.generation)
    return told
