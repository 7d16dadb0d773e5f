"""One metric of a job as a curve over steps, tokens or seconds, to lay the curves of several jobs over each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.wire.history_views import MetricsView
from orchestrator.wire.job_views import JobView
from trainer.contract.failure import FailureKind

By = Literal["step", "tokens", "time"]
UNITS = ("tokens", "samples")  # the first whose rate a job reports counts
_STEP_S = "step_s"
READ_WITH = (*(f"{unit}_per_s" for unit in UNITS), _STEP_S)  # the metrics that a curve needs beside its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Position i of each list belongs to one step. `units` are so many of `unit`; None where they are not known."""

    steps: Sequence[int]
    seconds: Sequence[float]  # since the first of the steps
    units: Sequence[float | None]
    unit: str | None  # "tokens" or "samples"
    values: Sequence[float | None]
    not_finite: int | None = None  # the step at which the values became NaN or infinite

    def along(self, by: By) -> Sequence[float | None]:
        return {"step": self.steps, "tokens": self.units, "time": self.seconds}[by]

    def points(self, by: By) -> Iterator[tuple[float, float]]:
        """Yield position and value, where both are known."""
        for x, value in zip(self.along(by), self.values, strict=True):
            if x is not None and value is not None:
                yield x, value


def read_curve(metrics: MetricsView, name: str) -> Curve:
    """Return the curve of one metric. `metrics` needs the series of READ_WITH too.

    The units between two stored steps are counted with the rate and the step time of the later one.
    """
    unit = next((each for each in UNITS if any(metrics.series.get(f"{each}_per_s", []))), None)
    rates = metrics.series.get(f"{unit}_per_s", [])
    durations = metrics.series.get(_STEP_S, [])
    return Curve(
        steps=metrics.steps,
        seconds=[(at - metrics.at[0]).total_seconds() for at in metrics.at],
        units=list(_sum_units(metrics.steps, rates, durations)),
        unit=unit,
        values=metrics.series.get(name) or [None] * len(metrics.steps),
        not_finite=metrics.not_finite.get(name),
    )


def tell_not_finite(job: JobView, name: str, step: int | None) -> str | None:
    """Say at which step a metric became NaN or infinite. The bundled trainer fails before it reports such a loss."""
    if step is not None:
        return f"{name} became NaN or infinite at step {step}"
    failure = job.failure
    return failure.message if failure is not None and failure.kind == FailureKind.NUMERIC and name == "loss" else None


def _sum_units(
    steps: Sequence[int], rates: Sequence[float | None], durations: Sequence[float | None]
) -> Iterator[float | None]:
    """Yield the units up to each step. A step without a rate counts as the one before it."""
    total, before, per_step = 0.0, 0, None
    for index, step in enumerate(steps):
        rate = rates[index] if index < len(rates) else None
        duration = durations[index] if index < len(durations) else None
        per_step = rate * duration if rate and duration else per_step
        total, before = total + (step - before) * (per_step or 0.0), step
        yield total if per_step is not None else None
