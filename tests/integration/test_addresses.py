"""The command line sends no job to a service that the caller did not name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client

UNREACHABLE = 3


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "one", "run": {"command": ["true"]}}))
    return file


def submit(file: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_job_goes_to_the_service_of_the_named_root_only(
    service: ThrowawayService, client: Client, job_file: Path, tmp_path: Path
) -> None:
    environment = service.environment()
    done = submit(job_file, environment)
    assert done.returncode == 0, done.stderr
    assert f"submitted to {service.url}" in done.stderr

    other = tmp_path / "other"
    nowhere = submit(job_file, environment | {"ORCHESTRATOR_ROOT": str(other), "ORCHESTRATOR_PORT": "0"})
    assert nowhere.returncode == UNREACHABLE
    assert f"no service uses the run directory {other}" in nowhere.stderr

    other.mkdir()
    announced = json.loads((service.root / "service.json").read_text()) | {"instance": "that of a killed service"}
    (other / "service.json").write_text(json.dumps(announced))
    strange = submit(job_file, environment | {"ORCHESTRATOR_ROOT": str(other)})
    assert strange.returncode == UNREACHABLE
    assert (
        f"the service at {service.url} uses another run directory than the one that the settings name" in strange.stderr
    )
    assert [job.id for job in client.jobs()] == [done.stdout.strip()]
