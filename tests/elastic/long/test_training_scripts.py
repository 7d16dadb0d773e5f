"""Training scripts outside a job: with a kill under elasticrun, and without one under torchrun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, TORCHRUN, wait_for
from tests.elastic.scripts_table import Script
from tests.elastic.training_scripts import TRAINING, kill_waiting

_LIMIT_S = 300.0

pytestmark = pytest.mark.timeout(700)


def start(launcher: Sequence[str], script: Script, folder: Path, **env: str) -> subprocess.Popen[str]:
    if importlib.util.find_spec(script.needs) is None:
        pytest.skip(f"{script.needs} is not installed")
    script.write(folder)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **script.env, **env}
    command, piped = [*launcher, *script.launch_arguments()], subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=piped, stderr=piped, text=True)


def check_end(process: subprocess.Popen[str], script: Script) -> str:
    """Returns what was written to stderr."""
    printed, errors = process.communicate(timeout=_LIMIT_S)
    done = sorted(line for line in printed.splitlines() if line.startswith("done "))
    assert (process.returncode, done) == (0, script.prints), printed + errors
    return errors


@pytest.mark.parametrize("name", TRAINING)
def test_a_script_trains_through_a_kill(name: str, tmp_path: Path) -> None:
    launcher = (*ELASTICRUN, "--max-restarts=1")
    with start(launcher, TRAINING[name], tmp_path, WAITS=str(tmp_path)) as process:
        try:
            wait_for(lambda: process.poll() is not None or kill_waiting(tmp_path), "kill", _LIMIT_S)
            assert "is a new process" not in check_end(process, TRAINING[name])
        finally:
            process.terminate()


@pytest.mark.parametrize("name", [name for name, script in TRAINING.items() if not script.not_torchrun])
def test_a_script_trains_under_torchrun(name: str, tmp_path: Path) -> None:
    with start(TORCHRUN, TRAINING[name], tmp_path) as process:
        try:
            check_end(process, TRAINING[name])
        finally:
            process.terminate()
