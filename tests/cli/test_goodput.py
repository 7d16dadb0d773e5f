"""`goodput` on the command line: tables, CSV and times."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta, timezone

import pytest

from orchestrator.cli.common import parse_moment
from orchestrator.cli.goodput_report import render_csv
from orchestrator.domain.errors import Refused
from orchestrator.wire.insight import GainView, GoodputView, RestartsView, SharesView, ShareView
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService, make_job

NOW = datetime(2026, 5, 4, 12, tzinfo=timezone.utc)


def share(name: str | None, **changes: object) -> ShareView:
    values: dict[str, object] = {
        "name": name,
        "jobs": 2,
        "device_seconds": 7200.0,
        "held_device_seconds": 3600.0,
        "goodput": 0.75,
        "bins": {"queue": 3600.0, "productive": 2700.0, "recovering": 900.0},
        "cost": 4.0,
        "lost_cost": 1.0,
        "gain_device_seconds": None,
    }
    return ShareView.model_validate({**values, **changes})


def shares(*items: ShareView, currency: str | None = "EUR") -> SharesView:
    return SharesView(by="user", since=AT, until=AT, currency=currency, total=share(None), items=list(items))


def test_goodput_prints_a_table_of_shares_with_their_total(run: Run, service: FakeService) -> None:
    service.accounts["goodput"] = shares(share("ann", gain_device_seconds=1800.0), share(None))
    done = run("goodput", "--by", "user", "--project", "vision", "--since", "7d", "--until", "2026-01-02T00:00Z")
    assert (done.returncode, done.stderr) == (0, "")
    header, ann, nobody, total = done.stdout.splitlines()
    assert header.split()[:3] == ["USER", "JOBS", "DEVICE-HOURS"]
    assert ann.split() == ["ann", "2", "2.00", "1.00", "75.0%", "0.25", "0.50", "4.00", "1.00"]
    assert (nobody.split()[0], total.split()[0]) == ("-", "all")
    query = service.queries[-1]
    assert (query["by"], query["project"], query["until"]) == ("user", "vision", "2026-01-02T00:00:00+00:00")
    assert datetime.fromisoformat(query["since"]) < datetime.now(timezone.utc) - timedelta(days=6)


def test_scripts_without_reports_have_no_goodput(run: Run, service: FakeService) -> None:
    silent = share("ann", goodput=None, bins={"queue": 3600.0, "untold": 3600.0}, cost=None, lost_cost=None)
    service.accounts["goodput"] = shares(silent, currency=None)
    _, ann, _ = run("goodput", "--by", "user").stdout.splitlines()
    assert ann.split() == ["ann", "2", "2.00", "1.00", "not", "reported", "0.00"]


def test_csv_has_a_line_for_each_share_and_no_formula() -> None:
    found = render_csv(shares(share("=cmd()", gain_device_seconds=36.0), share("ann"), share(None)))
    lines = list(csv.DictReader(io.StringIO(found)))
    assert [line["user"] for line in lines] == ["'=cmd()", "ann", ""]
    assert {
        name: lines[0][name] for name in ("device_hours", "queue", "recovering", "goodput", "could_have_spared")
    } == {
        "device_hours": "2.000000",
        "queue": "1.000000",
        "recovering": "0.250000",
        "goodput": "0.750000",
        "could_have_spared": "0.010000",
    }
    assert (lines[1]["cost_EUR"], lines[1]["lost_cost_EUR"], lines[1]["could_have_spared"]) == ("4.00", "1.00", "")


def test_without_prices_there_are_no_costs() -> None:
    unpriced = share("ann", cost=None, lost_cost=None, goodput=None)
    lines = render_csv(shares(unpriced, currency=None)).splitlines()
    assert lines[0].endswith("recovering,could_have_spared")
    assert lines[1] == "ann,2,2.000000,1.000000,,1.000000,0.750000,0.250000,"


def test_the_command_prints_what_programs_read(run: Run, service: FakeService) -> None:
    service.accounts["goodput"] = shares(share("ann"))
    assert run("goodput", "--csv").stdout == render_csv(shares(share("ann")))
    assert service.queries[-1]["by"] == "project"


def test_the_goodput_of_a_job_ends_with_its_gains(run: Run, service: FakeService) -> None:
    service.add(make_job())
    service.accounts["jobs/gpt-0001/goodput"] = GoodputView(
        goodput=0.5,
        device_seconds=100.0,
        wall_s=50.0,
        bins={"productive": 50.0, "recovering": 50.0},
        gains=[GainView(name="x", sentence="without failures", device_seconds=50.0)],
        cost=1.5,
        lost_cost=0.75,
        currency="EUR",
    )
    told = run("goodput", "gpt-0001").stdout.splitlines()
    assert told[-4:] == [
        "It cost 1.50 EUR; 0.75 of that was lost",
        "",
        "What would have saved time, in device-seconds:",
        "  50.0  without failures",
    ]


def test_the_goodput_of_a_job_has_its_restarts_by_source(run: Run, service: FakeService) -> None:
    service.add(make_job())
    costs = {"recovering_device_seconds": 6.0, "re_done_device_seconds": 2.0}
    service.accounts["jobs/gpt-0001/goodput"] = GoodputView(
        goodput=0.5,
        device_seconds=100.0,
        wall_s=50.0,
        bins={"productive": 50.0},
        restarts=[
            RestartsView(
                source="survivor", restarts=4, steps_repeated=0, steps_unknown=0, mean_to_next_step_s=0.75, **costs
            ),
            RestartsView(
                source="disk", restarts=2, steps_repeated=7, steps_unknown=1, mean_to_next_step_s=3.0, **costs
            ),
            RestartsView(
                source="other", restarts=1, steps_repeated=0, steps_unknown=1, mean_to_next_step_s=3.0, **costs
            ),
            RestartsView(
                source="none", restarts=0, steps_repeated=0, steps_unknown=0, mean_to_next_step_s=None, **costs
            ),
        ],
    )
    header, *rows = run("goodput", "gpt-0001").stdout.splitlines()[-5:]
    assert header.split("  ")[0] == "STATE FROM"
    assert [" ".join(row.split()) for row in rows] == [
        "a survivor 4 0 6.0 2.0 0.8 s",
        "disk 2 7 or more 6.0 2.0 3.0 s",
        "own files, or none 1 unknown 6.0 2.0 3.0 s",
        "not restarted 0 6.0 2.0",
    ]


def test_grouping_options_are_refused_for_one_job(run: Run, service: FakeService) -> None:
    service.add(make_job())
    done = run("goodput", "gpt-0001", "--by", "user")
    assert done.returncode == 2
    assert "are for all jobs" in done.stderr


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90m", NOW - timedelta(minutes=90)),
        ("12h", NOW - timedelta(hours=12)),
        ("30d", NOW - timedelta(days=30)),
        ("4w", NOW - timedelta(weeks=4)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=timezone.utc)),
        ("2026-05-01T12:00+02:00", datetime(2026, 5, 1, 10, tzinfo=timezone.utc)),
    ],
)
def test_times_are_ages_or_dates(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-1d", "3y", "999999w", "99999999d"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="must be an age such as 90m"):
        parse_moment(text, NOW)
