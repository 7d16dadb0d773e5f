"""Progress lines: a worker appends a JSON line per step or change of phase to its replica's `progress.jsonl`.

All workers of a replica append to one file (O_APPEND, one write per line). The byte offset after a line is its sequence
number: a reader that remembers the offset takes each line once, however the line arrived.

Every rank reports each change of its phase and each completed step. Before its first line it is in START: its
interpreter imports. A rank that has waited some seconds in a collective reports WAITING once, and its former phase
again when the wait is over. Both lines have the step that it completed last.

So if a group goes silent, the ranks of the newest generation that are behind in steps stopped first. If none is behind,
those that do not wait stopped first: a frozen process, and one that hangs outside a collective, cannot report WAITING.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

MAX_REPORTED_LINES = 10_000  # of one journal in one report of an agent


class Phase(str, Enum):
    """What a worker does. Limits differ by phase, so that a slow snapshot is not taken for a hang."""

    START = "start"  # imports, process group, building the model
    RESTORE = "restore"  # choosing and reading a snapshot, or the first values of the parameters
    COMPILE = "compile"
    DATA = "data"  # opening or indexing data, or a batch that was not ready at once
    STEP = "step"  # without a number: the first one is in progress
    SNAPSHOT = "snapshot"
    EVALUATION = "evaluation"
    WAITING = "waiting"  # in a collective, for the ranks that do not report this phase
    NOTE = "note"  # not a phase: measurements of a program that reports no phases; its silence is never a hang
    DONE = "done"


_NONE_MEASURED: Mapping[str, float] = MappingProxyType({})


class Progress(NamedTuple):
    """One line. `step` counts completed optimizer steps; `metrics` are of that step (loss in nats, global).

    A tuple, because a pass builds one for each new line, and a frozen dataclass takes three times as long to build.
    """

    at: str  # RFC 3339 UTC
    rank: int
    local_rank: int
    world_size: int
    generation: int
    pid: int
    phase: Phase
    step: int | None = None
    total_steps: int | None = None
    memory_bytes: int | None = None  # resident set on CPU, allocated peak on an accelerator
    utilisation: float | None = None  # 0 to 1: of the accelerator, or of the threads that compute on a CPU
    metrics: Mapping[str, float] = _NONE_MEASURED  # loss, tokens_per_s, learning_rate, grad_norm, step_s, ...


def render_progress(progress: Progress) -> dict[str, object]:
    """The JSON object of a line, without empty fields. JSON has no NaN, so it is a text that float() parses."""
    document = {name: value for name, value in progress._asdict().items() if value is not None and value != {}}
    if progress.metrics:
        document["metrics"] = {
            name: value if math.isfinite(value) else str(value) for name, value in progress.metrics.items()
        }
    return {**document, "phase": progress.phase.value}


_PHASES: dict[object, Phase] = {phase.value: phase for phase in Phase}


def parse_progress(document: dict[str, object]) -> Progress:
    """Parse a line. Unknown fields are ignored, an unknown phase reads as STEP. Raises ValueError."""
    try:
        phase = document.get("phase")
        metrics = document.get("metrics") or {}
        if not isinstance(metrics, dict):
            raise ValueError("metrics is not an object")
        return Progress(
            at=str(document["at"]),
            rank=_int(document["rank"]),
            local_rank=_int(document.get("local_rank", 0)),
            world_size=_int(document.get("world_size", 1)),
            generation=_int(document.get("generation", 1)),
            pid=_int(document.get("pid", 0)),
            phase=_PHASES.get(phase, Phase.STEP),
            step=_optional_int(document.get("step")),
            total_steps=_optional_int(document.get("total_steps")),
            memory_bytes=_optional_int(document.get("memory_bytes")),
            utilisation=_optional_float(document.get("utilisation")),
            metrics={str(name): float(value) for name, value in metrics.items()},
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not a progress line: {error}") from error


def _int(value: object) -> int:
    return value if type(value) is int else int(str(value))


def _optional_int(value: object) -> int | None:
    return None if value is None else _int(value)


def _optional_float(value: object) -> float | None:
    if value is None or type(value) is float:
        return value
    return float(str(value))
