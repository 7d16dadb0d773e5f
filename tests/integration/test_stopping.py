"""A service that gets SIGTERM before it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.bootstrap.database import open_database
from orchestrator.settings import Settings
from orchestrator.store.lease_store import SqlLeaseStore


@pytest.mark.parametrize("name", ["check_settings", "open_database", "build", "_announced", "run"])
def test_a_service_that_has_just_begun_ends_in_order(name: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    settings = {"ORCHESTRATOR_ROOT": str(root), "ORCHESTRATOR_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.signal_entry", name],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    assert not (root / "service.json").exists()
    with open_database(Settings(root=root)) as database:
        assert all(lease.expired for lease in SqlLeaseStore(database).leases())
