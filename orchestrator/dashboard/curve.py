"""The loss curve as geometry: from series to coordinates in a fixed picture. Pure; the template draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.wire import MetricsView

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 18, 26
_X_TICKS, _Y_TICKS = 8, 4  # at most, about
_MAX_LABELS = 12
_LABEL_ROOM = 34  # between two labels of marks


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Where another generation or attempt took over."""

    x: float
    text: str  # empty where there is no room for it
    title: str
    new_attempt: bool


@dataclass(frozen=True, slots=True)
class Curve:
    lines: tuple[str, ...]  # `points` of polylines; one for each run of steps without a gap
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    last: tuple[float, float]
    summary: str


def build_curve(metrics: MetricsView, name: str = "loss") -> Curve | None:
    """None while there are fewer than two values."""
    values = metrics.series.get(name, [])
    known = [(step, value) for step, value in zip(metrics.steps, values, strict=False) if value is not None]
    if len(known) < 2:
        return None
    steps, losses = [step for step, _ in known], [value for _, value in known]
    across = _Scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    margin = (max(losses) - min(losses)) * 0.06 or abs(losses[-1]) * 0.1 or 0.5
    up = _Scale(min(losses) - margin, max(losses) + margin, HEIGHT - BOTTOM, TOP)
    last_step, last_value = known[-1]
    return Curve(
        lines=_lines(metrics.steps, values, across, up),
        x_ticks=tuple(Tick(across.place(tick), f"{tick:,.0f}") for tick in _ticks(across, _X_TICKS, whole=True)),
        y_ticks=tuple(Tick(up.place(tick), f"{tick:.4g}") for tick in _ticks(up, _Y_TICKS)),
        marks=_marks(metrics, across),
        last=(across.place(last_step), up.place(last_value)),
        summary=f"{name} {last_value:.4g} at step {last_step}, lowest {min(losses):.4g}",
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + share * (self.end - self.start), 1)


def _lines(steps: Sequence[int], values: Sequence[float | None], across: _Scale, up: _Scale) -> tuple[str, ...]:
    lines: list[list[str]] = [[]]
    for step, value in zip(steps, values, strict=False):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{across.place(step)},{up.place(value)}")
    return tuple(" ".join(line) for line in lines if line)


def _marks(metrics: MetricsView, across: _Scale) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    labelled = -math.inf
    labels = 0
    terms = list(zip(metrics.steps, metrics.attempts, metrics.generations, strict=True))
    for (_, attempt, generation), (step, next_attempt, next_generation) in pairwise(terms):
        if (attempt, generation) == (next_attempt, next_generation):
            continue
        x = across.place(step)
        new_attempt = attempt != next_attempt
        shown = x - labelled >= _LABEL_ROOM and labels < _MAX_LABELS
        if shown:
            labelled, labels = x, labels + 1
        text = f"a{next_attempt}" if new_attempt else f"g{next_generation}"
        title = f"step {step}: attempt {next_attempt}, generation {next_generation} took over"
        marks.append(Mark(x, text if shown else "", title, new_attempt))
    return tuple(marks)


def _ticks(scale: _Scale, count: int, *, whole: bool = False) -> list[float]:
    """Round values inside the scale, in steps of 1, 2 or 5 times a power of ten."""
    span = scale.high - scale.low
    if span <= 0 or not math.isfinite(span):
        return [scale.low]
    power = 10.0 ** math.floor(math.log10(span / count))
    stride = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= span)
    stride = max(1.0, stride) if whole else stride
    first = math.ceil(scale.low / stride)
    return [index * stride for index in range(first, math.floor(scale.high / stride) + 1)]
