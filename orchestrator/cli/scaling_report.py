"""`compare --scaling`: how well runs of one spec on several sizes scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.cli.common import find_job, print_json, reading
from orchestrator.cli.render import console, number, print_sentence, print_table
from orchestrator.client.measured_runs import measure_run
from orchestrator.domain.accounting.scaling import Scaling, compare_runs
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Refused

_LEAST = 2


def report_scaling(job_ids: Sequence[str], *, as_json: bool) -> None:
    """Print how well the named jobs scale. Raises as `compare_sizes` does."""
    rows = compare_sizes(job_ids)
    if as_json:
        print_json({"items": [_document(row) for row in rows]})
    else:
        render_scaling(rows)


def compare_sizes(job_ids: Sequence[str]) -> tuple[Scaling, ...]:
    """Compare the named jobs. Raises NotFound, and Refused for one job, equal sizes or jobs without throughput."""
    with reading() as client:
        jobs = {job.id: job for job in (find_job(client, text) for text in job_ids)}
        runs = [measure_run(client, job) for job in jobs.values()]
    if len({run.ranks for run in runs}) < _LEAST:
        raise Refused(f"--scaling needs jobs on at least {_LEAST} sizes")
    try:
        return compare_runs(runs)
    except ValueError as error:
        raise Refused(str(error)) from None


def render_scaling(rows: Sequence[Scaling]) -> None:
    """Print one line for each run, then the sentence of each signal."""
    unit = f"{rows[0].run.unit.upper()}/S"
    header = ("JOB", "RANKS", unit, "SPEED-UP", "EFFICIENCY", "STEP", "DATA", "COMM", "LAUNCH")
    print_table(header, (_cells(row) for row in rows), spare=("STEP", "LAUNCH", "SPEED-UP"))
    console().print("")
    for row in rows:
        print_sentence(f"{counted(row.run.ranks, 'rank')}, {row.signal}: {row.sentence}")


def _cells(row: Scaling) -> tuple[str, ...]:
    run = row.run
    shares = (run.data_share, run.communication_share, run.launch_share)
    return (
        run.name,
        str(run.ranks),
        number(run.per_s),
        f"{row.speed_up:.2f}",
        f"{row.efficiency:.0%}",
        f"{run.step_s:.3g} s",
        *("" if share is None else f"{share:.0%}" for share in shares),
    )


def _document(row: Scaling) -> dict[str, object]:
    measured = {"speed_up": row.speed_up, "efficiency": row.efficiency, "signal": row.signal, "sentence": row.sentence}
    return {**asdict(row.run), **measured}
