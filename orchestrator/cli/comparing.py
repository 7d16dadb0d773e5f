"""`compare`: the curves of several jobs beside each other, and what differs in their specs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, complete_job, find_job, print_json, reading
from orchestrator.cli.render import colored, number, print_table, steps
from orchestrator.cli.scaling_report import report_scaling
from orchestrator.cli.terminal import echo, echo_lines, say
from orchestrator.client import Client
from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.differences import list_differences
from orchestrator.wire.curves import READ_WITH, By, Curve, read_curve, tell_not_finite
from orchestrator.wire.job_views import JobView

_POINTS = 500
_ROWS = 12
_LETTERS = "ABCDEFGHIJKL"
Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help=f"Up to {len(_LETTERS)} jobs.", autocompletion=complete_job),
]


@dataclass(frozen=True, slots=True)
class _Compared:
    letter: str
    job: JobView
    curve: Curve


def compare(
    jobs: Jobs,
    metric: Annotated[str, typer.Option(metavar="METRIC", help="The metric that is compared.")] = "loss",
    by: Annotated[By, typer.Option(help="Compare at equal steps, tokens (or samples), or seconds.")] = "step",
    by_size: Annotated[
        bool, typer.Option("--scaling", help="Show speed-up, efficiency, and what limits each size instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a metric of several jobs, and list what differs in their specs."""
    if len(jobs) > len(_LETTERS):
        raise Refused(f"{len(jobs)} jobs are too many to compare; at most {len(_LETTERS)}")
    if by_size:
        if (metric, by) != ("loss", "step"):
            raise Refused("--metric and --by have no effect with --scaling; leave them out")
        report_scaling(jobs, as_json=as_json)
        return
    with reading() as client:
        compared = list(_read(client, jobs, metric))
    differences = list_differences([each.job.spec for each in compared])
    if as_json:
        print_json({"items": [_document(each, differences, place) for place, each in enumerate(compared)]})
        return
    _print_jobs(compared, differences)
    echo()
    echo(f"{metric} by {by}")
    found = ((each.letter, tell_not_finite(each.job, metric, each.curve.not_finite)) for each in compared)
    notes = [f"{letter}: {note}" for letter, note in found if note is not None]
    if not _print_curves(compared, by) and not notes:
        say(f"No job has reported {metric} by {by}.", err=True)
    echo_lines(notes)


def _read(client: Client, names: Sequence[str], metric: str) -> Iterator[_Compared]:
    wanted = ",".join((metric, *READ_WITH))
    found = {job.id: job for job in (find_job(client, name) for name in names)}
    for letter, job in zip(_LETTERS, found.values(), strict=False):
        metrics = client.metrics(job.id, names=wanted, points=_POINTS)
        yield _Compared(letter, job, read_curve(metrics, metric))


def _print_jobs(compared: Sequence[_Compared], differences: Mapping[str, Sequence[str]]) -> None:
    print_table(
        ("", "JOB", *differences, "STATE", "STEP"),
        (
            (
                each.letter,
                each.job.id,
                *(values[place] for values in differences.values()),
                colored(each.job.state),
                steps(each.job),
            )
            for place, each in enumerate(compared)
        ),
        spare=("STEP",),
    )


def _print_curves(compared: Sequence[_Compared], by: By) -> bool:
    """Print the last value of each curve up to evenly spaced positions. Returns False if there is no value."""
    points = {each.letter: sorted(each.curve.points(by)) for each in compared}
    last = max((found[-1][0] for found in points.values() if found), default=None)
    if last is None:
        return False
    positions = [last * row / _ROWS for row in range(1, _ROWS + 1)]
    if by == "step":
        positions = sorted({math.ceil(at) for at in positions})
    print_table(
        (_title(compared, by), *points),
        ((number(at), *(_value_at(found, at) for found in points.values())) for at in positions),
    )
    return True


def _title(compared: Sequence[_Compared], by: By) -> str:
    units = {each.curve.unit for each in compared if each.curve.unit}
    return {"time": "SECONDS", "tokens": " OR ".join(sorted(units)).upper()}.get(by) or by.upper()


def _value_at(points: Sequence[tuple[float, float]], position: float) -> str:
    """Return the last value up to a position; nothing before the first point and behind the last one."""
    if not points or position > points[-1][0]:
        return ""
    return next((f"{value:.4g}" for x, value in reversed(points) if x <= position), "")


def _document(each: _Compared, differences: Mapping[str, Sequence[str]], place: int) -> dict[str, object]:
    curve = each.curve
    return {
        "job": each.job.id,
        "state": each.job.state,
        "differs": {path: values[place] for path, values in differences.items()},
        "steps": list(curve.steps),
        "unit": curve.unit,
        "units": list(curve.units),
        "seconds": list(curve.seconds),
        "values": list(curve.values),
        "not_finite": curve.not_finite,
    }
