"""Run docs/how-to/run-on-slurm.md as written, with a real Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import ThrowawaySlurm
from tests.howto.page import ROOT, run_page


@pytest.mark.timeout(900)
def test_the_page_does_what_it_says(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    configured = slurm.environment["SLURM_CONF"]
    more = {"SHARED": str(shared), "PYTHON": sys.executable, "SLURM_CONF": configured}
    run_page(ROOT / "docs" / "how-to" / "run-on-slurm.md", tmp_path, more)
