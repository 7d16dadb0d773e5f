"""Read what a job measured of itself, as a run that `domain.accounting.scaling` compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from orchestrator.client.client import Client
from orchestrator.domain.accounting.goodput import UNHELD, Bin
from orchestrator.domain.accounting.scaling import MeasuredRun
from orchestrator.domain.errors import Refused
from orchestrator.wire.curves import READ_WITH, UNITS
from orchestrator.wire.history_views import MetricsView
from orchestrator.wire.job_views import JobView

_NAMES = (*READ_WITH, "data_s", "communication_s")
_POINTS = 2000
_LAUNCH = (Bin.START_UP, Bin.RENDEZVOUS, Bin.LOAD, Bin.COMPILE)


def measure_run(client: Client, job: JobView) -> MeasuredRun:
    """Return the median throughput and step time of the job's newest generation, and the shares of its time.

    The first step of the generation is left out, because it compiles and allocates. Raises Refused if the workers
    report no throughput or no step time.
    """
    series = _newest_generation(client.metrics(job.id, names=",".join(_NAMES), points=_POINTS))
    unit = next((each for each in UNITS if series.get(f"{each}_per_s")), None)
    step_s = series.get("step_s")
    if unit is None or not step_s or not job.world_size:
        raise Refused(f"job {job.id} reports no steps with tokens_per_s or samples_per_s; pass one to run.step")
    return MeasuredRun(
        name=job.id,
        ranks=job.world_size,
        unit=unit,
        per_s=median(series[f"{unit}_per_s"]),
        step_s=median(step_s),
        data_share=_share(series.get("data_s"), step_s),
        communication_share=_share(series.get("communication_s"), step_s),
        launch_share=_launch_share(client.goodput(job.id).bins),
    )


def _newest_generation(found: MetricsView) -> dict[str, list[float]]:
    """Return the known values of the newest generation of the newest attempt, without its first step."""
    lives = list(zip(found.attempts, found.generations, strict=True))
    places = [place for place, life in enumerate(lives) if life == lives[-1]]
    return {
        name: [value for place in places[1:] if (value := values[place]) is not None]
        for name, values in found.series.items()
    }


def _share(part: Sequence[float] | None, step_s: Sequence[float]) -> float | None:
    return fmean(part) / fmean(step_s) if part else None


def _launch_share(bins: Mapping[str, float]) -> float | None:
    held_s = sum(seconds for name, seconds in bins.items() if name not in UNHELD)
    return sum(bins.get(each, 0.0) for each in _LAUNCH) / held_s if held_s else None
