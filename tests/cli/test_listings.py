"""`ls`, `show`, `logs`, `events` and `snapshots` against a fake service."""

from __future__ import annotations

import io
import json

import pytest

from orchestrator.cli import render
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.wire.insight import WhyView
from orchestrator.wire.job_views import JobView
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService, make_event, make_failure, make_job, make_snapshot

SEVERAL = {"name": "gpt", "run": {"script": "train.py", "workdir": "/src"}, "topology": {"nodes": "2"}}


def test_ls_prints_a_table_ids_or_json(run: Run, service: FakeService) -> None:
    for number in range(5):
        service.add(make_job(f"gpt-{number}", reason="a [bold]long[/bold] reason " * 20, state=JobState.RUNNING))
    table = run("ls").stdout.splitlines()
    assert table[0].split() == ["ID", "PROJECT", "STATE", "STEP", "LOSS", "ATTEMPTS", "RESTARTS", "AGE", "REASON"]
    assert len(table) == 6
    assert table[1].endswith("a [bold]long[/bold] reason")
    assert run("ls", "-q", "--state", "running").stdout.split() == [f"gpt-{number}" for number in range(5)]
    listed = json.loads(run("ls", "--json", "--limit", "2").stdout)
    assert (len(listed["items"]), listed["next_cursor"]) == (2, None)


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *jobs: JobView, width: int = 80) -> list[str]:
    screen = io.StringIO()
    terminal = render._CleanConsole(width=width, force_terminal=True, color_system=None, file=screen)
    monkeypatch.setattr(render, "console", lambda: terminal)
    render.print_jobs(jobs)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + len(jobs)
    return lines


WAITS = "needs 8 slots; 2 of 8 are free, and so on " * 3


def test_a_terminal_gets_no_empty_column_and_a_reason_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = make_job("gpt-0002", reason=WAITS)
    trains = make_job(state=JobState.RUNNING, reason="the workers are running", restarts=3)
    header, first, second = shown_on_a_terminal(monkeypatch, waits, trains)
    assert header.split() == ["ID", "PROJECT", "STATE", "RESTARTS", "AGE", "REASON"], "the others are empty"
    assert first.endswith("…")
    assert second.split()[:4] == ["gpt-0001", "default", "RUNNING", "3"]


def test_a_long_id_and_the_state_are_whole_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that matter less are left out, so that the reason has room."""
    long_id = "sleeper-with-a-long-name-37kkk7bm"
    job = make_job(long_id, state=JobState.SUSPENDED, reason=WAITS, restarts=3, attempts=2, step=10, loss=1.0)
    header, line = shown_on_a_terminal(monkeypatch, job)
    assert header.split() == ["ID", "STATE", "STEP", "AGE", "REASON"]
    assert line.split()[:3] == [long_id, "SUSPENDED", "10"]
    whole = shown_on_a_terminal(monkeypatch, job, width=300)
    assert whole[1].endswith(WAITS.strip())


def test_step_and_age_stay_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {"step": 12400, "total_steps": 500000, "loss": 2.31}
    failed = {"state": JobState.RECOVERING, "reason": WAITS, "restarts": 12, "attempts": 3}
    jobs = (
        make_job("gpt-7b-pretrain-k3v9x2qa", cluster="h100", project="language", **trained, **failed),
        make_job("vit-finetune-p8m2c4wd", cluster="a100", project="vision", state=JobState.RUNNING, **trained),
        make_job("sweep-lr-z6t1h5rb", cluster="local", reason=WAITS),
    )
    header, first, _, _ = shown_on_a_terminal(monkeypatch, *jobs)
    assert header.split() == ["ID", "STATE", "STEP", "AGE", "REASON"]
    assert first.split()[:3] == ["gpt-7b-pretrain-k3v9x2qa", "RECOVERING", "12400/500000"]
    assert first.endswith("…")
    assert shown_on_a_terminal(monkeypatch, *jobs, width=60)[0].split() == ["ID", "STATE", "STEP", "REASON"]


def test_an_empty_list_is_an_empty_json_list(run: Run, service: FakeService) -> None:
    assert json.loads(run("ls", "--json").stdout) == {"items": [], "next_cursor": None}
    assert run("ls", "-q").stdout == ""


def test_a_job_is_found_by_id_prefix_or_name(run: Run, service: FakeService) -> None:
    service.add(make_job("gpt-abc1"))
    service.add(make_job("vit-abc1", name="vit"))
    service.add(make_job("vit-abc2", name="vit"))
    assert json.loads(run("show", "gpt", "--json").stdout)["id"] == "gpt-abc1"
    assert json.loads(run("show", "vit-abc2", "--json").stdout)["id"] == "vit-abc2"
    several = run("show", "vit")
    assert several.returncode == 2
    assert "may mean 2 jobs: vit-abc1, vit-abc2" in several.stderr
    assert "there is no job 'nope'" in run("show", "nope").stderr
    assert "the id is empty" in run("show", "").stderr


def test_show_prints_the_failure_without_control_characters(run: Run, service: FakeService) -> None:
    failed = make_job(state=JobState.FAILED, reason="rank 1 \x1b[31mfailed", failure=make_failure(), step=7)
    service.add(failed)
    shown = run("show", "gpt-0001").stdout
    assert "failure    application on rank 1: ValueError: boom" in shown
    assert f"/jobs/{failed.id}" in shown
    assert "\x1b" not in shown


def test_show_and_why_print_what_a_job_waits_for(run: Run, service: FakeService) -> None:
    service.add(make_job())
    far = "2999-01-01T00:00:00Z"
    holder = {"id": "vit-1", "name": "vit", "state": "RUNNING", "devices": 2, "ends_by": None}
    ending = {**holder, "id": "gpt-2", "devices": 1, "ends_by": far}
    sentence = "1 job starts before it."
    service.wait = {"sentences": [sentence], "ahead": 1, "holders": [holder, ending], "other_devices": 3}
    shown = run("show", "gpt-0001").stdout
    assert f"waits      {sentence} vit-1 holds 2 devices. gpt-2 holds 1 device and ends within about " in shown
    assert "h. Other jobs hold 3 devices." in shown
    assert f"\n{sentence}\nvit-1 holds 2 devices.\n" in run("why", "gpt-0001").stdout


@pytest.mark.parametrize(("state", "command"), [("FAILED", True), ("RUNNING", False)])
def test_why_prints_the_innermost_frames_and_where_the_rest_is(
    state: str, command: bool, run: Run, service: FakeService
) -> None:
    service.add(make_job(state=JobState(state)))
    failure = {"kind": "hang", "message": "rank 1 made no step for 60 s", "rank": 1}
    stacks = {"rank": 1, "frames": ["all_reduce (c10d.py:7)", "step (train.py:3)"]}
    cause = {"failure": failure, "at": AT, "attempt": 1, "generation": 1, "collateral_ranks": [0], "nodes": []}
    found = {"job": "gpt-0001", "state": state, "verdict": "Rank 1 hung.", "deeds": [], "lost": "0", "next": "Wait."}
    service.accounts["jobs/gpt-0001/why"] = WhyView.model_validate(
        {**found, "remedy": None, "cause": {**cause, "over": not command, "stacks": stacks}}
    )
    shown = run("why", "gpt-0001").stdout
    assert "\nSaved stacks of rank 1: all_reduce (c10d.py:7), called from step (train.py:3)\n" in shown
    assert ("\nAll of them: orchestrator stacks gpt-0001\n" in shown) == command


def test_why_cuts_a_long_traceback_before_a_frame(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.FAILED))
    frames = [f'  File "train.py", line {number}, in step\n    step()\n' for number in range(30)]
    traceback = f"Traceback (most recent call last):\n{''.join(frames)}ValueError: boom"
    failure = {"kind": "application", "message": "ValueError: boom", "traceback": traceback}
    cause = {"failure": failure, "at": AT, "attempt": 1, "generation": 1, "collateral_ranks": [], "nodes": []}
    found = {"job": "gpt-0001", "state": "FAILED", "verdict": "It failed.", "deeds": [], "lost": "0", "next": "Wait."}
    service.accounts["jobs/gpt-0001/why"] = WhyView.model_validate(
        {**found, "remedy": None, "cause": {**cause, "over": False}}
    )
    shown = run("why", "gpt-0001").stdout
    assert (
        "\n  Traceback (most recent call last):\n    [44 lines left out]\n"
        '    File "train.py", line 22, in step\n' in shown
    )
    assert "line 21, in step" not in shown
    assert "\n  ValueError: boom\n" in shown


def test_show_prints_the_nodes_of_a_shrunken_job(run: Run, service: FakeService) -> None:
    document = {"name": "gpt", "run": {"script": "t.py", "workdir": "/"}, "topology": {"nodes": "1:2"}}
    service.add(make_job(state=JobState.RUNNING, nodes="2", asked="1:2", spec=JobSpec.model_validate(document)))
    service.wait = {"sentences": ["It grows back once it has taken a snapshot."], "nodes": 1}
    shown = run("show", "gpt-0001").stdout
    assert "nodes      1 of 1:2 requested" in shown
    assert "waits      It grows back once it has taken a snapshot." in shown


def test_show_prints_the_parts_of_a_steps_time(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.RUNNING, step=7))
    assert "step time" not in run("show", "gpt-0001").stdout
    service.measured = {"step_s": 0.5, "compute_s": 0.4, "communication_s": 0.09, "data_s": 0.01, "mfu": 0.413}
    shown = run("show", "gpt-0001").stdout
    assert "mfu        41.3%" in shown
    assert "step time  0.5 s: computing 80%, communication 18%, data 2%" in shown


def test_logs_are_printed_by_the_options(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "one\ntwo\nthree\n"
    assert run("logs", "gpt-0001").stdout == service.log
    assert run("logs", "gpt-0001", "--tail", "1").stdout == "three\n"
    assert run("logs", "gpt-0001", "-f").stdout == service.log
    assert json.loads(run("logs", "gpt-0001", "--json").stdout)["lines"] == ["one", "two", "three"]
    assert json.loads(run("logs", "gpt-0001", "-f", "--json").stdout.splitlines()[0]) == {"line": "one"}


def test_log_options_become_query_parameters(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    asked = ("--replica", "1", "--grep", "loss", "--agent", "--attempt", "2")
    assert run("logs", "gpt-0001", *asked).returncode == 0
    query = {"replica": "1", "grep": "loss", "stream": "agent", "attempt": "2"}
    assert service.queries[-1] == {**query, "whole": "true"}
    assert run("logs", "gpt-0001", *asked, "--tail", "5").returncode == 0
    assert service.queries[-1] == {**query, "tail": "5"}


@pytest.mark.parametrize("follow", [False, True])
def test_events_name_their_replica_where_there_are_several(run: Run, service: FakeService, follow: bool) -> None:
    told = [
        make_event(1, "submitted"),
        make_event(2, "generation 1 started", replica=0),
        make_event(3, "generation 1 started", replica=1),
        make_event(4, "replica 1 cancelled", replica=1),
        make_event(5, "replica 11 is missed", replica=1),
    ]

    def printed(**changes: object) -> list[str]:
        service.add(make_job(state=JobState.SUCCEEDED, **changes))
        arguments = ("show", "gpt-0001", "--follow") if follow else ("events", "gpt-0001")
        lines = run(*arguments).stdout.splitlines()
        return [line.partition("  ")[2] for line in lines if line.startswith("2026-")]

    service.events["gpt-0001"] = told[:2]
    assert printed() == ["submitted", "generation 1 started"]
    service.events["gpt-0001"] = told
    assert printed(spec=SEVERAL) == [
        "submitted",
        "replica 0: generation 1 started",
        "replica 1: generation 1 started",
        "replica 1 cancelled",
        "replica 1: replica 11 is missed",
    ]


@pytest.mark.parametrize(("tail", "ids"), [("2", [4, 5]), ("0", []), ("9", [1, 2, 3, 4, 5])])
def test_only_the_last_events_are_listed_with_tail(run: Run, service: FakeService, tail: str, ids: list[int]) -> None:
    service.add(make_job())
    service.events["gpt-0001"] = [make_event(number, "Sentence.") for number in range(1, 6)]
    assert run("events", "gpt-0001", "--tail", tail).stdout.count("Sentence.") == len(ids)
    listed = json.loads(run("events", "gpt-0001", "--tail", tail, "--json").stdout)["items"]
    assert [event["id"] for event in listed] == ids


def test_following_prints_a_restart_in_place_of_two_nodes_once(run: Run, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED, spec=SEVERAL))
    service.events["gpt-0001"] = [
        make_event(number, f"workers restarted in place after {number} s", replica=number, kind="restart.in_place")
        for number in (1, 2)
    ]
    shown = run("show", "gpt-0001", "--follow").stdout
    assert [line.partition("  ")[2] for line in shown.splitlines() if "restarted" in line] == [
        "workers restarted in place after 1 s"
    ]
    assert run("show", "gpt-0001", "--follow", "--json").stdout.count("restarted in place") == 2


def test_deleted_snapshots_are_listed_with_all(run: Run, service: FakeService) -> None:
    service.add(make_job())
    states = {"step-3": "committed", "step-2": "quarantined", "step-1": "deleted"}
    told = [make_snapshot(name, int(name[-1]), state) for name, state in states.items()]
    service.snapshots["gpt-0001"] = [*told]
    assert _names(run("snapshots", "gpt-0001", "--json").stdout) == ["step-3", "step-2"]
    assert _names(run("snapshots", "gpt-0001", "--all", "--json").stdout) == ["step-3", "step-2", "step-1"]
    assert "deleted" not in run("snapshots", "gpt-0001").stdout
    assert "deleted" in run("snapshots", "gpt-0001", "--all").stdout
    service.snapshots["gpt-0001"] = told[-1:]
    none_left = run("snapshots", "gpt-0001")
    assert (none_left.returncode, none_left.stdout) == (0, "")
    assert none_left.stderr == "All snapshots were deleted; --all lists them.\n"


def test_a_job_without_snapshots_says_how_to_get_one_where_it_can(run: Run, service: FakeService) -> None:
    service.add(make_job(name="gpt"))
    assert run("snapshots", "gpt").stderr == (
        "No snapshots: this script has taken none; only scripts with `Supervised` take them.\n"
    )
    service.add(make_job(name="gpt", step=7))
    assert run("snapshots", "gpt").stderr == (
        "No snapshots yet; `orchestrator snapshot gpt-0001` takes one while the job runs.\n"
    )
    service.add(make_job(state=JobState.SUCCEEDED))
    assert run("snapshots", "gpt-0001").stderr == "No snapshot was taken.\n"


def _names(printed: str) -> list[str]:
    return [snapshot["name"] for snapshot in json.loads(printed)["items"]]
