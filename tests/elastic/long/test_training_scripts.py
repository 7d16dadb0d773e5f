"""Scripts that train, by hand: through a kill under elasticrun, and undisturbed under torchrun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, wait_for
from tests.elastic.scripts_table import Script
from tests.elastic.training_scripts import TRAINING, kill_who_waits

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_LIMIT_S = 300.0

pytestmark = pytest.mark.timeout(700)


def start(launcher: Sequence[str], script: Script, folder: Path, **env: str) -> subprocess.Popen[str]:
    if importlib.util.find_spec(script.needs) is None:
        pytest.skip(f"{script.needs} is not installed")
    script.write(folder)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **script.env, **env}
    command, piped = [*launcher, *script.by_hand()], subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=piped, stderr=piped, text=True)


def check_end(process: subprocess.Popen[str], script: Script) -> str:
    """Returns what was written to stderr."""
    printed, said = process.communicate(timeout=_LIMIT_S)
    done = sorted(line for line in printed.splitlines() if line.startswith("done "))
    assert (process.returncode, done) == (0, script.prints), printed + said
    return said


@pytest.mark.parametrize("name", TRAINING)
def test_it_trains_through_a_kill_by_hand(name: str, tmp_path: Path) -> None:
    launcher = (*ELASTICRUN, "--max-restarts=1")
    with start(launcher, TRAINING[name], tmp_path, WAITS=str(tmp_path)) as process:
        try:
            wait_for(lambda: process.poll() is not None or kill_who_waits(tmp_path), "kill", _LIMIT_S)
            assert "is a fresh process" not in check_end(process, TRAINING[name])
        finally:
            process.terminate()


@pytest.mark.parametrize("name", [name for name, script in TRAINING.items() if not script.not_torchrun])
def test_it_trains_under_torchrun(name: str, tmp_path: Path) -> None:
    with start(TORCHRUN, TRAINING[name], tmp_path) as process:
        try:
            check_end(process, TRAINING[name])
        finally:
            process.terminate()
