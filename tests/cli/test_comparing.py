"""Comparisons on the command line."""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.history_views import MetricsView
from orchestrator.wire.job_views import FailureView
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService, make_job

RUNNING = {"state": JobState.RUNNING, "step": 2}


@pytest.fixture
def jobs(service: FakeService) -> FakeService:
    service.add(make_job("a-1", **RUNNING))
    other = JobSpec.model_validate({"name": "b", "run": {"script": "train.py", "workdir": "/src"}, "priority": 3})
    service.add(make_job("b-1", **RUNNING, spec=other))
    service.measured = {"loss": 0.125, "own": 4.0, "tokens_per_s": 100.0, "step_s": 2.0}
    return service


def test_curves_stand_beside_each_other_below_what_differs(run: Run, jobs: FakeService) -> None:
    lines = run("compare", "a-1", "b-1", "a-1").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["JOB", "priority", "STATE", "STEP"],
        ["A", "a-1", "0", "RUNNING", "2"],
        ["B", "b-1", "3", "RUNNING", "2"],
        [],
        ["loss", "by", "step"],
        ["STEP", "A", "B"],
        ["1"],
        ["2", "0.125", "0.125"],
    ]


@pytest.mark.parametrize(("by", "title"), [("tokens", "TOKENS"), ("time", "SECONDS"), ("step", "STEP")])
def test_positions_are_steps_tokens_or_seconds(run: Run, jobs: FakeService, by: str, title: str) -> None:
    done = run("compare", "a-1", "--by", by, "--metric", "own")
    table = done.stdout.split("\n\n")[1].splitlines()[1:]
    assert table[0].split() == [title, "A"]
    assert table[-1].split()[-1] == "4"


def test_json_has_the_whole_curves(run: Run, jobs: FakeService) -> None:
    items = json.loads(run("compare", "a-1", "b-1", "--json").stdout)["items"]
    assert [item["differs"] for item in items] == [{"priority": "0"}, {"priority": "3"}]
    assert items[0]["steps"] == [1, 2]
    assert items[0]["values"] == [None, 0.125]
    assert (items[0]["unit"], items[0]["units"]) == ("tokens", [None, 200.0])


def test_a_loss_that_became_nan_is_told(run: Run, jobs: FakeService) -> None:
    message = "NonFiniteLoss: loss is nan and the gradient's norm nan at step 3"
    failure = FailureView(kind="numeric", message=message, step=2)
    jobs.add(make_job("b-1", state=JobState.FAILED, failure=failure))
    one = {"steps": [1, 2], "at": [AT, AT], "attempts": [1, 1], "generations": [1, 1]}
    jobs.accounts["jobs/a-1/metrics"] = MetricsView.model_validate(
        {**one, "series": {"loss": [None, None]}, "not_finite": {"loss": 1}}
    )
    shown = run("compare", "a-1", "b-1")
    assert shown.stdout.splitlines()[-2:] == ["A: loss became NaN or infinite at step 1", f"B: {message}"]
    assert "became" not in run("compare", "b-1").stdout
    alone = run("compare", "a-1")
    assert (alone.stdout.splitlines()[-1], alone.stderr) == ("A: loss became NaN or infinite at step 1", "")
    items = json.loads(run("compare", "a-1", "b-1", "--json").stdout)["items"]
    assert [item["not_finite"] for item in items] == [1, None]
    assert message not in run("compare", "b-1", "--metric", "own").stdout


def test_what_cannot_be_compared_is_said(run: Run, jobs: FakeService) -> None:
    done = run("compare", "a-1", "--metric", "nothing")
    assert (done.returncode, done.stderr) == (0, "No job has reported nothing by step.\n")
    many = run("compare", *(f"job-{number}" for number in range(13)))
    assert (many.returncode, "13 jobs are too many to compare; at most 12" in many.stderr) == (2, True)
    assert run("compare", "a-1", "--by", "moon").returncode == 2
    both = run("compare", "a-1", "b-1", "--scaling", "--metric", "own")
    assert (both.returncode, "have no effect with --scaling" in both.stderr) == (2, True)
