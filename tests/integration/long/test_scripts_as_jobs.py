"""The scripts that run by hand also run as jobs of one service, under either launcher, several at once.

Training scripts lose a process to SIGKILL halfway, recover in place and finish.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.elastic.harness import short_tmpdir
from tests.elastic.scripts_table import SCRIPTS, Script
from tests.elastic.training_scripts import TRAINING, kill_waiting

LAUNCHERS = ("elasticrun", "torchrun")
_OF_A_WORKER = re.compile(r"^\[a\d+ g\d+ r\d+/\d+\] ")  # prefix in the log of several workers
Outcome = tuple[str, tuple[str, ...], int]  # the state, what the workers printed, the attempts of one that succeeds
_PATIENCE_S = 900.0  # beside a busy loop on every core


@pytest.fixture
def default_service(tmp_path: Path) -> Iterator[ThrowawayService]:
    """Default settings, except that several jobs run at once on any number of cores."""
    with (
        short_tmpdir() as folder,
        ThrowawayService(tmp_path / "runs", {"ORCHESTRATOR_LOCAL_SLOTS": "6", "TMPDIR": folder}) as running,
    ):
        yield running


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_runs_as_a_job(launcher: str, default_service: ThrowawayService, tmp_path: Path) -> None:
    scripts = {name: script for name, script in SCRIPTS.items() if not script.not_a_job}
    if launcher == "elasticrun":
        scripts = {name: script for name, script in scripts.items() if not script.not_elasticrun}
    with Client(default_service.url) as client:
        jobs = {name: submit(client, script, tmp_path / name, launcher) for name, script in scripts.items()}
        wait_for_all(client, jobs)
        came_of_it = {name: outcome(client, jobs[name], script) for name, script in scripts.items()}
    assert differing(came_of_it, scripts) == {}
    assert list(default_service.processes()) == []


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_trains_through_a_kill(launcher: str, default_service: ThrowawayService, tmp_path: Path) -> None:
    scripts = {name: script for name, script in TRAINING.items() if importlib.util.find_spec(script.needs)}
    with Client(default_service.url) as client:
        folders = {name: tmp_path / name for name in scripts}
        jobs = {
            name: submit(client, script, folders[name], launcher, WAITS=str(folders[name]))
            for name, script in scripts.items()
        }
        killed = wait_for_all(client, jobs, folders)
        came_of_it = {name: outcome(client, jobs[name], script) for name, script in scripts.items()}
    assert differing(came_of_it, scripts) == {}
    assert killed == set(scripts)
    assert list(default_service.processes()) == []


def submit(client: Client, script: Script, folder: Path, launcher: str, **env: str) -> str:
    folder.mkdir()
    script.write(folder)
    spec = script.as_job(folder, launcher)
    run = spec["run"]
    assert isinstance(run, dict)
    return client.submit({**spec, "run": {**run, "env": {**run["env"], **env}}}).id


def wait_for_all(client: Client, jobs: Mapping[str, str], kills: Mapping[str, Path] | None = None) -> set[str]:
    """Wait for all jobs to end. Kill one waiting process per folder of `kills`, and return those folders' names."""
    left, killed = dict(jobs), set[str]()
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        killed |= {name for name, folder in (kills or {}).items() if name not in killed and kill_waiting(folder)}
        left = {name: job_id for name, job_id in left.items() if not client.job(job_id).ended}
        time.sleep(0.2)
    assert not left, {name: client.job(job_id).reason for name, job_id in left.items()}
    return killed


def outcome(client: Client, job_id: str, script: Script) -> Outcome:
    """A script that fails is restarted, so its lines may be repeated."""
    job = client.job(job_id)
    wanted = {line.split()[0] for line in script.prints}
    lines = [_OF_A_WORKER.sub("", line) for line in client.logs(job_id).splitlines()]
    printed = [line for line in lines if line.partition(" ")[0] in wanted]
    return job.state, tuple(sorted(set(printed) if script.code else printed)), 0 if script.code else job.attempts


def expected(script: Script) -> Outcome:
    return ("FAILED", tuple(script.prints), 0) if script.code else ("SUCCEEDED", tuple(script.prints), 1)


def differing(came_of_it: Mapping[str, Outcome], scripts: Mapping[str, Script]) -> dict[str, Outcome]:
    return {name: found for name, found in came_of_it.items() if found != expected(scripts[name])}
