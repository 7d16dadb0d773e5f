"""`orchestrator simulate`, in separate processes, because it configures the log."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_json_has_the_documented_fields() -> None:
    done = simulate("--gpus", "64", "--mtbf-hours", "6", "--days", "2", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {"ettr", "ettr_closed_form", "goodput", "restarts", "violations", "decisions", "attempts"} <= report.keys()
    assert 0.9 < report["ettr"] < 1
    assert report["violations"] == []
    assert sum(report["goodput"].values()) == pytest.approx(2 * 86400 * 64, rel=1e-12)
    assert report["ettr"] == pytest.approx(report["goodput"]["productive"] / report["device_seconds"])
    assert report["attempts"] == 1 + sum(report["restarts"].values())
    assert "simulated in" in done.stderr  # standard output must be the same in each run


def test_the_worth_of_copies_in_memory_is_printed() -> None:
    arguments = ("--gpus", "64", "--mtbf-hours", "2", "--days", "2", "--json")
    done = simulate(*arguments, "--memory-interval", "60", "--buddies", "2", "--survivors")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["scenario"]["memory"] == {
        "interval_s": 60.0,
        "stall_s": 0.6,
        "restart_s": 20.0,
        "survivors": True,
        "buddies": 2,
    }
    assert report["ettr"] > report["ettr_without_memory"]
    assert report["ettr_closed_form"] > report["ettr_closed_form_without_memory"]
    assert sum(report["restarts_by_source"].values()) > 10


def test_options_of_copies_need_an_interval() -> None:
    done = simulate("--buddies", "2")
    assert done.returncode == 2
    assert "--memory-interval" in done.stderr


@pytest.mark.long
def test_a_rule_that_was_left_out_is_missing_from_the_report() -> None:
    arguments = ("--gpus", "64", "--mtbf-hours", "6", "--days", "1")
    whole, without = simulate(*arguments), simulate(*arguments, "--without", "adopt_end")
    assert "  adopt_end " in whole.stdout
    assert "  adopt_end " not in without.stdout
    assert whole.stdout == simulate(*arguments).stdout


def test_an_unknown_rule_is_refused_with_a_list_of_the_rules() -> None:
    done = simulate("--without", "gravity")
    assert done.returncode == 2
    assert "adopt_end" in done.stderr
