"""`doctor` on this machine, with two real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.dev.service import processes_of
from orchestrator.bootstrap.cluster_backends import ClusterSetup
from orchestrator.bootstrap.machine import build_clusters
from orchestrator.doctor.doctor import examine
from orchestrator.doctor.finding import Verdict
from orchestrator.doctor.trial_group import Timeouts, build_group_plan, try_group
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.settings import Settings
from tests.builders import make_attempt, make_job
from tests.elastic.harness import wait_for
from tests.pythons import write_python_that_never_begins, write_python_with_a_wrong_torch


@pytest.fixture
def setup(tmp_path: Path) -> ClusterSetup:
    (setup,) = build_clusters(Settings(root=tmp_path / "runs"), 0, b"")
    return setup


def options(command: tuple[str, ...]) -> list[str]:
    return [word.partition("=")[0] for word in command]


@pytest.mark.long
def test_two_workers_form_a_group_and_leave_no_files(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    (found,) = examine(Settings(root=root), "local")
    assert (found.cluster, found.check, found.verdict) == ("local", "group", Verdict.OK), found.sentence
    assert "two workers formed a group" in found.sentence
    assert not root.exists()


def test_the_workers_are_started_like_those_of_a_job(setup: ClusterSetup) -> None:
    tried = build_group_plan(setup.cluster, setup.site, workdir="/")
    job = build_plan(make_job(), make_attempt(), setup.site)
    ours, theirs = options(tried.command), options(job.command)
    assert ours[: ours.index("--module")] == theirs[: theirs.index("--no-python")]
    assert tried.environment(0).keys() == job.environment(0).keys()


def test_an_agent_that_cannot_start_is_reported_with_the_reason(setup: ClusterSetup, tmp_path: Path) -> None:
    site = replace(setup.site, python=str(write_python_with_a_wrong_torch(tmp_path)))
    _, verdict, sentence = try_group(setup.cluster, site)
    assert verdict is Verdict.FAILED
    assert "the agent cannot start with" in sentence
    assert "torch 99.1" in sentence
    assert list(setup.cluster.job_root.iterdir()) == []


def test_a_group_that_does_not_form_is_ended_and_reported(setup: ClusterSetup, tmp_path: Path) -> None:
    site = replace(setup.site, python=str(write_python_that_never_begins(tmp_path)))
    _, verdict, sentence = try_group(setup.cluster, site, Timeouts(meet_s=0.5))
    assert verdict is Verdict.FAILED
    assert "formed no group within" in sentence
    assert list(processes_of(setup.cluster.job_root)) == []
    assert list(setup.cluster.job_root.iterdir()) == []


def test_a_missing_interpreter_is_reported(setup: ClusterSetup) -> None:
    _, verdict, sentence = try_group(setup.cluster, replace(setup.site, python="/opt/none/python3"))
    assert (verdict, "/opt/none/python3 is not an executable program" in sentence) == (Verdict.FAILED, True)


@pytest.mark.long
def test_sigterm_ends_the_check_without_leftovers(tmp_path: Path) -> None:
    """`timeout` and the end of a pod send SIGTERM."""
    root, scratch = tmp_path / "runs", tmp_path / "tmp"
    scratch.mkdir()
    environ = {**os.environ, "ORCHESTRATOR_ROOT": str(root), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "orchestrator.cli", "doctor", "--cluster", "local"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: list(root.glob("doctor-*/attempts/1/replica-0")), "agent")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    finally:
        process.kill()
    assert list(processes_of(root)) == []
    assert not root.exists()
    assert list(scratch.iterdir()) == []


def test_a_cluster_that_is_not_configured_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no cluster nowhere"):
        list(examine(Settings(), "nowhere"))
