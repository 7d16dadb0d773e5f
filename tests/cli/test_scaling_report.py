"""`compare --scaling` on the command line, against a service that answers with measured steps."""

from __future__ import annotations

import json

from orchestrator.domain.job.job import JobState
from orchestrator.wire.history_views import MetricsView
from orchestrator.wire.insight import GoodputView
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService, make_job

BINS = {"queue": 500.0, "start_up": 5.0, "rendezvous": 1.0, "load": 3.0, "compile": 1.0, "productive": 90.0}


def add_run(service: FakeService, job_id: str, ranks: int, per_s: list[float], *, name: str = "tokens_per_s") -> None:
    """A job whose first generation trained two steps before `per_s`, which the newest one reports."""
    service.add(make_job(job_id, state=JobState.SUCCEEDED, world_size=ranks))
    generations = [1, 1, *[2] * len(per_s)]
    whole = {
        name: [1.0, 1.0, *per_s],
        "step_s": [9.0, 9.0, *[0.5] * len(per_s)],
        "data_s": [9.0, 9.0, *[0.05] * len(per_s)],
        "communication_s": [None, None, *[0.1 * (ranks - 1)] * len(per_s)],
    }
    count = len(generations)
    steps = {"steps": list(range(count)), "at": [AT] * count, "attempts": [1] * count, "generations": generations}
    service.accounts[f"jobs/{job_id}/metrics"] = MetricsView.model_validate({**steps, "series": whole})
    service.accounts[f"jobs/{job_id}/goodput"] = GoodputView(goodput=0.9, device_seconds=600.0, wall_s=600.0, bins=BINS)


def test_runs_are_compared_without_their_first_steps_and_earlier_generations(run: Run, service: FakeService) -> None:
    add_run(service, "small-1", 1, [3.0, 990.0, 1000.0, 1010.0])
    add_run(service, "large-3", 3, [3.0, 1500.0, 1500.0, 1500.0])
    done = run("compare", "--scaling", "large-3", "small-1")
    assert (done.returncode, done.stderr) == (0, "")
    header, small, large, _, base, limit = done.stdout.splitlines()
    assert header.split() == ["JOB", "RANKS", "TOKENS/S", "SPEED-UP", "EFFICIENCY", "STEP", "DATA", "COMM", "LAUNCH"]
    assert small.split() == ["small-1", "1", "1,000", "1.00", "100%", "0.5", "s", "10%", "0%", "10%"]
    assert large.split() == ["large-3", "3", "1,500", "1.50", "50%", "0.5", "s", "10%", "40%", "10%"]
    assert base == "1 rank, base: the run with the fewest ranks."
    assert limit == "3 ranks, communication bound: communication without computing is 80% of the lost efficiency."


def test_the_same_numbers_are_there_for_programs(run: Run, service: FakeService) -> None:
    add_run(service, "small-1", 1, [3.0, 8.0], name="samples_per_s")
    add_run(service, "large-2", 2, [3.0, 15.0], name="samples_per_s")
    items = json.loads(run("compare", "--scaling", "--json", "small-1", "large-2").stdout)["items"]
    assert [item["name"] for item in items] == ["small-1", "large-2"]
    wanted = {"unit": "samples", "ranks": 2, "per_s": 15.0, "speed_up": 1.875, "efficiency": 0.9375}
    assert {name: items[1][name] for name in wanted} == wanted
    assert items[1]["signal"] == "scales well"


def test_what_cannot_be_compared_is_refused(run: Run, service: FakeService) -> None:
    add_run(service, "small-1", 1, [3.0, 8.0])
    add_run(service, "also-1", 1, [3.0, 8.0])
    add_run(service, "samples-2", 2, [3.0, 8.0], name="samples_per_s")
    add_run(service, "silent-2", 2, [3.0, 8.0], name="accuracy")
    for jobs, words in (
        (("small-1", "also-1"), "at least 2 sizes"),
        (("small-1", "small-1"), "at least 2 sizes"),
        (("small-1", "samples-2"), "in one unit"),
        (("small-1", "silent-2"), "job silent-2 reports no steps with tokens_per_s or samples_per_s"),
    ):
        done = run("compare", "--scaling", *jobs)
        assert done.returncode == 2
        assert words in done.stderr
