"""The data of a job's charts: series over steps, the steps where a new generation began, and snapshots. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.store.records import MetricPoint
from orchestrator.wire.curves import Curve

MAX_POINTS = 2000
MAX_MARKS = 1000
_SPARK_WIDTH, _SPARK_HEIGHT = 80, 22
_DIGITS = 6  # significant digits: more than a screen can show
_MAX_SERIES = 40


@dataclass(frozen=True, slots=True)
class Takeover:
    """The first step of another generation or attempt."""

    step: int
    text: str  # such as "g2" or "a3"
    words: str
    new_attempt: bool


def render_charts(points: Sequence[MetricPoint], snapshots: Sequence[int]) -> str:
    """Return JSON with `steps`, `series` by name, `takeovers`, and `snapshots`: at most MAX_MARKS of these steps.

    The numbers are formatted by hand, which rounds and writes thousands of floats in half the time.
    """
    names = sorted({name for point in points for name in point.values})[:_MAX_SERIES]
    series = ",".join(f"{json.dumps(name)}:[{_row(points, name)}]" for name in names)
    takeovers = [[one.step, one.text, one.words, one.new_attempt] for one in find_takeovers(points)]
    rest = f'"takeovers":{json.dumps(takeovers)},"snapshots":{json.dumps(_thin(snapshots))}'
    return f'{{"steps":{json.dumps([point.step for point in points])},"series":{{{series}}},{rest}}}'


def find_takeovers(points: Iterable[MetricPoint]) -> list[Takeover]:
    found = []
    for before, after in pairwise(points):
        if (before.attempt, before.generation) != (after.attempt, after.generation):
            new = before.attempt != after.attempt
            text = f"a{after.attempt}" if new else f"g{after.generation}"
            words = f"attempt {after.attempt}, generation {after.generation} began at step {after.step}"
            found.append(Takeover(after.step, text, words, new))
    return found


def draw_spark(values: Sequence[float]) -> str | None:
    """Return the attribute `points` of a polyline. None for fewer than two values."""
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    across = _SPARK_WIDTH / (len(values) - 1)
    places = (
        (index * across, _SPARK_HEIGHT - 2 - (value - low) / span * (_SPARK_HEIGHT - 4))
        for index, value in enumerate(values)
    )
    return " ".join(f"{x:.0f},{y:.1f}" for x, y in places)


def render_curves(curves: Mapping[str, Curve], names: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return JSON with the `names` of all metrics, `notes`, and `curves`: each with `label`, `values`, and positions by
    `step`, `tokens` and `time`."""
    rendered = ",".join(
        f'{{"label":{json.dumps(label)},"values":[{_numbers(curve.values)}],"step":[{_numbers(curve.steps)}],'
        f'"tokens":[{_numbers(curve.units)}],"time":[{_numbers(curve.seconds)}]}}'
        for label, curve in curves.items()
    )
    return f'{{"names":{json.dumps(names)},"notes":{json.dumps(notes)},"curves":[{rendered}]}}'


def _thin(steps: Sequence[int]) -> list[int]:
    """Return every n-th step, with the last one."""
    every = -(-len(steps) // MAX_MARKS) or 1
    return list(steps[::-1][::every][::-1])


def _row(points: Iterable[MetricPoint], name: str) -> str:
    """Return the values of one series."""
    return _numbers(point.values.get(name) for point in points)


def _numbers(values: Iterable[float | None]) -> str:
    """Missing values, NaN and infinity are null. Whole numbers keep all their digits."""
    return ",".join(
        "null"
        if value is None or not math.isfinite(value)
        else str(value)
        if isinstance(value, int)
        else f"{value:.{_DIGITS}g}"
        for value in values
    )
