"""`goodput`: where the device time of a job, or of all jobs, went."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, complete_job, find_job, parse_moment, print_json, reading
from orchestrator.cli.render import console, duration, print_table
from orchestrator.cli.terminal import echo
from orchestrator.domain.accounting.breakdown import Grouping
from orchestrator.domain.accounting.goodput import EXPLAINED, Bin, show_bin
from orchestrator.domain.accounting.restarts import show_repeated, show_source
from orchestrator.domain.errors import Refused
from orchestrator.wire.insight import GoodputView, RestartsView, SharesView, ShareView

_HOUR_S = 3600.0
_NOBODY = "-"

_Job = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A job id, a unique prefix of one, or a unique job name. Default: all jobs.",
        autocompletion=complete_job,
        show_default=False,
    ),
]
_By = Annotated[Grouping | None, typer.Option("--by", help="Group all jobs by this.", show_default=False)]
_Project = Annotated[
    str | None, typer.Option("--project", metavar="PROJECT", help="Include only jobs of this project.")
]
_Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="AGO|TIME", help="Start of the report: an age such as 90m, 12h, 30d or 4w, or a time."
    ),
]
_Until = Annotated[str | None, typer.Option("--until", metavar="AGO|TIME", help="End of the report. Default: now.")]
_Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, in device-hours.")]


def goodput(
    job_id: _Job = None,
    by: _By = None,
    project: _Project = None,
    since: _Since = "30d",
    until: _Until = None,
    as_csv: _Csv = False,
    as_json: AsJson = False,
) -> None:
    """Show where the device time of a job, or of all jobs, went."""
    if job_id is not None:
        if by is not None or project is not None or as_csv:
            raise Refused("--by, --project and --csv are for all jobs; leave them out, or leave out JOB")
        _one(job_id, as_json)
        return
    now = datetime.now(timezone.utc)
    with reading() as client:
        found = client.shares(
            by or Grouping.PROJECT,
            project=project,
            since=parse_moment(since, now),
            until=None if until is None else parse_moment(until, now),
        )
    if as_json:
        print_json(found)
    elif as_csv:
        echo(render_csv(found), nl=False)
    else:
        _print_shares(found)


def _one(job_id: str, as_json: bool) -> None:
    with reading() as client:
        found = client.goodput(find_job(client, job_id).id)
    if as_json:
        print_json(found)
    else:
        _print_goodput(found)


def _print_shares(found: SharesView) -> None:
    header = (found.by.upper(), "JOBS", "DEVICE-HOURS", "HELD", "GOODPUT", "LOST", "COULD HAVE SAVED", *_money(found))
    rows = [_row(share, found.currency is not None) for share in found.items]
    print_table(header, [*rows, _row(found.total.model_copy(update={"name": "all"}), found.currency is not None)])


def _money(found: SharesView) -> tuple[str, ...]:
    return () if found.currency is None else (f"COST {found.currency}", "LOST COST")


def _row(share: ShareView, has_prices: bool) -> tuple[str, ...]:
    saved = "" if share.gain_device_seconds is None else f"{share.gain_device_seconds / _HOUR_S:.2f}"
    money = (f"{share.cost or 0.0:.2f}", f"{share.lost_cost or 0.0:.2f}") if has_prices else ()
    return (
        share.name or _NOBODY,
        str(share.jobs),
        f"{share.device_seconds / _HOUR_S:.2f}",
        f"{share.held_device_seconds / _HOUR_S:.2f}",
        _show_goodput(share.goodput, share.bins),
        f"{share.lost_device_seconds / _HOUR_S:.2f}",
        saved,
        *money,
    )


def _show_goodput(goodput: float | None, bins: Mapping[str, float]) -> str:
    if goodput is not None:
        return f"{goodput:.1%}"
    return "not reported" if bins.get(Bin.NOT_REPORTED) else ""


def render_csv(found: SharesView) -> str:
    """Render one line for each group, in device-hours."""
    bins = list(found.total.bins)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([found.by, "jobs", "device_hours", "held_device_hours", "goodput", *bins, *_csv_rest(found)])
    for share in found.items:
        writer.writerow([_safe(share.name or ""), share.jobs, *_numbers(share, bins, found.currency is not None)])
    return text.getvalue()


def _csv_rest(found: SharesView) -> Sequence[str]:
    money = () if found.currency is None else (f"cost_{found.currency}", f"lost_cost_{found.currency}")
    return ("could_have_spared", *money)


def _numbers(share: ShareView, bins: Sequence[str], has_prices: bool) -> list[str]:
    gain_s = share.gain_device_seconds
    return [
        *(f"{seconds / _HOUR_S:.6f}" for seconds in (share.device_seconds, share.held_device_seconds)),
        "" if share.goodput is None else f"{share.goodput:.6f}",
        *(f"{share.bins.get(name, 0.0) / _HOUR_S:.6f}" for name in bins),
        "" if gain_s is None else f"{gain_s / _HOUR_S:.6f}",
        *([f"{share.cost or 0.0:.2f}", f"{share.lost_cost or 0.0:.2f}"] if has_prices else []),
    ]


def _safe(name: str) -> str:
    """Quote cells that look like formulas (OWASP, CSV Injection)."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _explain(name: str) -> str:
    """Return the meaning of a bin. Empty for a bin of a newer service."""
    return EXPLAINED[Bin(name)] if name in set(Bin) else ""


def _print_goodput(found: GoodputView) -> None:
    whole = found.device_seconds
    rows = [
        (show_bin(name), f"{seconds:.1f}", f"{seconds / whole:.1%}" if whole else "", _explain(name))
        for name, seconds in found.bins.items()
        if seconds
    ]
    print_table(("BIN", "DEVICE-SECONDS", "SHARE", "MEANING"), rows)
    console().print(f"{duration(found.wall_s)} in total, {whole:.1f} device-seconds{_productive(found)}")
    if found.cost is not None and found.lost_cost is not None:
        console().print(f"It cost {found.cost:.2f} {found.currency}; {found.lost_cost:.2f} of that was lost")
    if found.restarts:
        _print_restarts(found.restarts)
    if found.gains:
        console().print("\nWhat would have saved time, in device-seconds:")
    for gain in found.gains:
        saved = "?" if gain.device_seconds is None else f"{gain.device_seconds:.1f}"
        console().print(f"  {saved}  {gain.sentence}")


def _print_restarts(found: Sequence[RestartsView]) -> None:
    console().print("\nRestarts by the source of the state, times in device-seconds:")
    rows = [
        (
            show_source(each.source),
            str(each.restarts),
            show_repeated(each.steps_repeated, each.steps_unknown) if each.restarts else "",
            f"{each.recovering_device_seconds:.1f}",
            f"{each.re_done_device_seconds:.1f}",
            "" if each.mean_to_next_step_s is None else f"{each.mean_to_next_step_s:.1f} s",
        )
        for each in found
    ]
    print_table(("STATE FROM", "RESTARTS", "STEPS REPEATED", "RECOVERING", "RE-DONE", "TO NEXT STEP"), rows)


def _productive(found: GoodputView) -> str:
    if found.goodput is not None:
        return f"; {found.goodput:.1%} of the held time was productive"
    return "; its workers report no steps" if found.bins.get(Bin.NOT_REPORTED) else ""
