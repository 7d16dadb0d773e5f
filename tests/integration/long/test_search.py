"""The example of a search with Optuna, against a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "optuna_search.py"


@pytest.mark.long
def test_a_search_runs_its_trials_as_jobs(service: ThrowawayService, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--trials", "3", "--steps", "4"],
        cwd=tmp_path,
        env={**os.environ, "ORCHESTRATOR_URL": service.url},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["SUCCEEDED"] * 3
    assert lines[3].startswith("best: loss ")
