"""Arrays on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.sweep import expand, parse_array
from tests.cli.conftest import Run
from tests.cli.fake_service import FakeService, make_array, make_job

SWEEP = "name: lr\nrun: {script: train.py}\nsweep: {product: {--lr: [1e-1, 010]}, at_once: 1}\n"
DONE, FAILED, RUNNING, QUEUED = JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING, JobState.QUEUED


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "lr.yaml"
    path.write_text(SWEEP)
    return str(path)


def test_a_file_with_a_sweep_submits_an_array(run: Run, service: FakeService, sweep: str, tmp_path: Path) -> None:
    service.arrays = [make_array(RUNNING, QUEUED)]
    done = run("submit", sweep, "--set", "priority=3")
    assert (done.returncode, done.stdout) == (0, "lr-aaaaaaaa\n")
    assert done.stderr == f"submitted 2 jobs to {service.url}\n"
    assert service.bodies[-1] == {
        "name": "lr",
        "run": {"script": "train.py", "workdir": str(tmp_path)},
        "sweep": {"product": {"--lr": ["1e-1", "010"]}, "at_once": 1},
        "priority": 3,
    }
    assert json.loads(run("submit", sweep, "--json").stdout)["id"] == "lr-aaaaaaaa"
    service.arrays = [make_array(RUNNING, QUEUED, warnings=["mind the gap"])]
    assert "warning: mind the gap\n" in run("submit", sweep).stderr
    for option in ("--preflight", "--follow"):
        refused = run("submit", sweep, option)
        assert (refused.returncode, "use --wait with a sweep" in refused.stderr) == (2, True)


@pytest.mark.parametrize(("last", "status"), [(DONE, 0), (FAILED, 1), (JobState.CANCELLED, 1)])
def test_waiting_prints_each_change_and_ends_with_the_arrays_status(
    run: Run, service: FakeService, sweep: str, last: JobState, status: int
) -> None:
    service.arrays = [make_array(RUNNING, QUEUED), make_array(RUNNING, QUEUED), make_array(DONE, last)]
    done = run("submit", sweep, "--wait")
    assert done.returncode == status
    lines = done.stdout.splitlines()
    assert lines[0] == "lr-aaaaaaaa  2 jobs: 1 QUEUED, 1 RUNNING"
    assert len(lines) == 2
    service.arrays = [make_array(DONE, last)]
    shown = run("array", "show", "lr-aaaaaaaa", "--wait", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["array"]["size"]) == (status, 2)


def test_an_array_is_shown_with_what_differs(run: Run, service: FakeService) -> None:
    service.arrays = [make_array(RUNNING, QUEUED, at_once=1)]
    lines = run("array", "show", "lr-aaaaaaaa").stdout.splitlines()
    assert lines[0] == "lr-aaaaaaaa  2 jobs, at most 1 at a time: 1 QUEUED, 1 RUNNING"
    assert lines[1].split() == ["#", "--lr", "STATE", "STEP", "LOSS", "ID", "REASON"]
    assert lines[2].split() == ["1", "1e-1", "RUNNING", "3/9", "0.25", "lr-1-0000", "its", "reason"]


def test_an_array_with_missing_members_has_not_succeeded(run: Run, service: FakeService) -> None:
    service.arrays = [make_array(DONE, DONE, size=3)]
    done = run("array", "show", "lr-aaaaaaaa", "--wait")
    assert (done.returncode, done.stdout) == (1, "lr-aaaaaaaa  3 jobs: 2 SUCCEEDED, 1 missing\n")


def test_an_array_is_found_by_the_name_of_a_member(run: Run, service: FakeService) -> None:
    document = {"name": "lr", "run": {"script": "a.py", "workdir": "/src"}, "sweep": {"product": {"--lr": [1, 2]}}}
    for member in expand(parse_array(document), "lr-aaaaaaaa"):
        service.add(make_job(f"{member.name}-0000", name=member.name, spec=member))
    service.arrays = [make_array(DONE, DONE)]
    service.unknown_arrays = {"lr", "lr-1", "zz"}
    assert run("array", "show", "lr").returncode == 0
    assert service.requests[-1] == ("GET", "/api/v1/arrays/lr-aaaaaaaa")
    assert run("array", "cancel", "lr-1").returncode == 0
    service.add(make_job("other-1", reason="waits: array lr-aaaaaaaa runs 1 job; its limit is 1"))
    for text in ("", "r", "aaaaaaaa", "1", "waits", "lr-1-00"):  # only parts of what there is: nothing may be cancelled
        service.unknown_arrays.add(text)
        service.requests.clear()
        refused = run("array", "cancel", text)
        assert refused.returncode == 2, text
        assert not any(method == "POST" for method, _ in service.requests), text
    missing = run("array", "show", "zz")
    assert (missing.returncode, "there is no array 'zz'" in missing.stderr) == (2, True)


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_requests_say_which_members_they_did_not_reach(run: Run, service: FakeService, verb: str) -> None:
    service.arrays = [make_array(FAILED, DONE, refused=["you may not"])]
    done = run("array", verb, "lr-aaaaaaaa")
    assert (done.returncode, done.stderr) == (0, "you may not\n")
    assert done.stdout == "lr-aaaaaaaa  2 jobs: 1 SUCCEEDED, 1 FAILED\n"
    assert service.requests[-1] == ("POST", f"/api/v1/arrays/lr-aaaaaaaa/{verb}")


def test_a_plan_lists_the_members_and_shows_the_first(run: Run, service: FakeService, sweep: str) -> None:
    done = run("plan", sweep)
    assert done.stdout.splitlines()[:4] == [
        "the sweep makes 2 jobs; the first one is planned below",
        "#  --lr",
        "1  1e-1",
        "2  010",
    ]
    body = service.bodies[-1]
    assert (body["name"], body["run"]["args"]) == ("lr-1", ["--lr", "1e-1"])  # type: ignore[index]
    document = json.loads(run("plan", sweep, "--json").stdout)
    assert document["members"] == [{"--lr": "1e-1"}, {"--lr": "010"}]
    assert document["plan"]["rendezvous_id"] == "r"


def test_a_wrong_sweep_is_refused_by_field(run: Run, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(SWEEP.replace("product", "produkt"))
    done = run("plan", "wrong.yaml")
    assert done.returncode == 2
    assert "/sweep/produkt: is not a known field" in done.stderr
