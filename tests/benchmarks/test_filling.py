"""The databases that the benchmark of a long history fills."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.control_plane.filling import LONG_JOB, fill
from benchmarks.control_plane.load import fresh_database
from orchestrator.store.engine import Database
from orchestrator.store.schema import list_versions
from orchestrator.store.tables import JobRow, MetricRow
from orchestrator.store.upgrade import upgrade


@pytest.mark.parametrize("version", [list_versions()[0], list_versions()[-1]])
def test_tables_of_any_version_are_filled_and_upgraded(version: str, tmp_path: Path) -> None:
    with fresh_database(None, tmp_path, version=version) as url:
        fill(url, jobs=100, metric_rows=1000)
        upgrade(url)
        with Database(url) as database, database.read() as session:
            assert session.scalar(select(func.count()).select_from(JobRow)) == 100
            assert session.scalar(select(func.count()).where(MetricRow.job_id == LONG_JOB)) == 100
