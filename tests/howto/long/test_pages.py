"""Run every page of docs/how-to and docs/guides, and the tutorial."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy.tools import missing
from tests.howto.page import GUIDES, HOW_TO, ROOT, run_page

pytestmark = pytest.mark.timeout(900)

ELSEWHERE = {"run-on-slurm"}  # tests/slurm/live has a Slurm
SMOKE = {"ddp-or-fsdp", "from-ddp-to-fsdp2"}  # a few seconds each
RUN = [page for page in (*HOW_TO, *GUIDES) if page.stem not in ELSEWHERE]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.smoke] if page.stem in SMOKE else []) for page in RUN],
    ids=lambda page: page.stem,
)
def test_the_steps_of_a_page_work(page: Path, tmp_path: Path) -> None:
    _require_namespaces(page.read_text())
    run_page(page, tmp_path)


def _require_namespaces(text: str) -> None:
    command = ["unshare", "--map-root-user", "--net", "ip", "link"]
    if " ".join(command[:3]) not in text:
        return
    try:
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        missing(f"this machine allows no network namespaces: {error}")


def test_the_tutorial_ends_with_a_job_that_recovered_three_times(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "tutorial.md", tmp_path)
