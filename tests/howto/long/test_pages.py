"""Run every page of docs/how-to, and the tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.howto.page import ROOT, run_page

pytestmark = pytest.mark.timeout(900)

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
ELSEWHERE = {"run-on-slurm"}  # tests/slurm/live has a Slurm


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in ELSEWHERE], ids=lambda page: page.stem)
def test_the_steps_of_a_page_work(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_the_tutorial_ends_with_a_job_that_recovered_three_times(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "tutorial.md", tmp_path)
