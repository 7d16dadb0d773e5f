"""Sentences on a terminal break between words. Nothing breaks in a pipe or in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.terminal import wrap
from orchestrator.domain.job.job import JobState
from orchestrator.wire.insight import WhyView
from tests.cli.conftest import Run
from tests.cli.fake_service import AT, FakeService, make_event, make_job

LONG = "the cluster has no node with " + "enough free memory and " * 6 + "so on"


def test_a_line_breaks_between_words_and_is_indented() -> None:
    assert wrap("orchestrator: one two three\n  four five six seven eight", 16) == (
        "orchestrator:\n  one two three\n  four five six\n    seven eight"
    )


@pytest.mark.parametrize(
    "whole",
    [
        "/a/very/long/path/that-has/no-space.py",
        "`orchestrator show gpt-0001 --follow`",
        "orchestrator array show lr-abcdefgh --wait",
        "printf %s VALUE | orchestrator secret set NAME",
    ],
)
def test_a_command_and_a_path_stay_on_one_line(whole: str) -> None:
    assert f"  {whole}" in wrap(f"some words before it, or: {whole}", 30).splitlines()


@given(st.text(alphabet="ab`:; /-\n", max_size=80), st.integers(10, 40))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    wrapped = wrap(text, width)
    assert wrapped.split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 or "`" in line for line in wrapped.split("\n"))


def test_an_error_is_wrapped_on_a_terminal_only(run: Run, service: FakeService) -> None:
    name = "a-job-with-quite-a-long-name-that-nobody-has-submitted"
    said = f"orchestrator: there is no job '{name}'; `orchestrator ls` lists them\n"
    assert run("show", name).stderr == said
    assert run("show", name, columns=80).stderr == said.replace("job '", "job\n  '").replace(" lists", "\n  lists")
    assert json.loads(run("show", name, "--json", columns=80).stderr)["error"] == said[14:-1]
    usage = run("ls", "--state", "a-state-that-does-not-exist-at-all", columns=80).stderr
    assert max(map(len, usage.splitlines())) <= 80


@pytest.mark.parametrize("command", [("why", "gpt-0001"), ("show", "gpt-0001"), ("events", "gpt-0001")])
def test_explanations_are_wrapped_on_a_terminal_only(run: Run, service: FakeService, command: tuple[str, ...]) -> None:
    service.add(make_job(state=JobState.FAILED, reason=LONG))
    service.events["gpt-0001"] = [make_event(1, LONG)]
    actions = [{"at": AT, "sentence": LONG, "attempt": 1, "rule": "give_up"}]
    found = {"job": "gpt-0001", "state": "FAILED", "verdict": LONG, "deeds": actions, "lost": LONG, "next": LONG}
    service.accounts["jobs/gpt-0001/why"] = WhyView.model_validate({**found, "remedy": None, "cause": None})
    piped, shown = run(*command).stdout, run(*command, columns=80).stdout
    assert LONG in piped
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split() == piped.split()


def test_warnings_are_wrapped_on_a_terminal(run: Run, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: gpt\nrun: {script: train.py}\n")
    service.warning, service.warnings = f"the service warns: {LONG}", [LONG]
    for command in ("submit", "plan"):
        shown = run(command, "job.yaml", columns=80)
        lines = (shown.stderr + shown.stdout).split("\n\n")[0].splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("  ") for line in lines)
