"""`orchestrator doctor` on a real Slurm, healthy and not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.slurm.cluster import ThrowawaySlurm
from orchestrator.doctor import doctor, slurm_checks
from orchestrator.settings import load_settings
from tests.pythons import write_python_with_a_wrong_torch
from tests.slurm.live.lab import BY_REST, configuration, soon


def examine(slurm: ThrowawaySlurm, folder: Path, **changes: Any) -> tuple[int, dict[str, tuple[str, str]]]:
    config = folder / "orchestrator.toml"
    config.write_text(configuration(slurm, **changes))
    given = {"ORCHESTRATOR_ROOT": str(folder / "runs"), "ORCHESTRATOR_ADVERTISE_URL": "http://10.255.255.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "doctor", "--config", str(config), "--json"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    items = json.loads(done.stdout)["items"]
    return done.returncode, {
        item["check"]: (item["verdict"], item["sentence"]) for item in items if item["cluster"] != "service"
    }


def test_a_healthy_cluster_passes_and_an_unreachable_service_is_a_warning(
    slurm: ThrowawaySlurm, tmp_path: Path
) -> None:
    status, found = examine(slurm, tmp_path)
    assert status == 0, found
    assert {check for check, (verdict, _) in found.items() if verdict == "warning"} == {"reports"}
    assert "through the run directory" in found["reports"][1]
    assert found["shared"][0] == found["torch"][0] == found["clock"][0] == found["delay"][0] == "ok"
    assert found["version"][1].startswith("Slurm 2")
    assert found["group"][1].startswith("two workers formed a group on n")
    assert {path.name for path in (tmp_path / "runs").iterdir()} <= {".agents", ".workdirs"}, "what jobs share"


def test_configuration_errors_are_named(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    status, found = examine(slurm, tmp_path, python="/opt/none/python3")
    assert (status, found["compute node"][0]) == (2, "failed")
    status, found = examine(slurm, tmp_path, defaults={"partition": "nowhere"}, command_timeout_s=2)
    assert status == 2
    assert found.get("MessageTimeout", ("warning",))[0] == "warning", "slurmrestd does not report it"
    assert "nvalid partition" in found["compute node"][1]
    nowhere = {"rest_url": "unix:/tmp/none/rest"} if BY_REST else {"conf": "/tmp/none/slurm.conf"}
    status, found = examine(slurm, tmp_path, **nowhere, command_timeout_s=2)
    assert (status, list(found)) == (2, ["controller"])


def test_a_torch_that_the_agent_cannot_use_is_found(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    status, found = examine(slurm, tmp_path, python=str(write_python_with_a_wrong_torch(tmp_path)))
    assert (status, found["torch"]) == (2, ("ok", "torch 99.1"))
    assert found["group"][0] == "failed"
    assert "the agent cannot start with" in found["group"][1]
    assert "torch 99.1" in found["group"][1]
    soon(lambda: not slurm.run("squeue", "-h"), "a job is left")


def test_a_full_cluster_fails_and_nothing_is_left_in_its_queue(
    slurm: ThrowawaySlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_checks, "_PROBE_S", 4.0)
    blocker = slurm.run("sbatch", "--parsable", "-N4", "--cpus-per-task=4", "--wrap=sleep 300", "-o", "/dev/null")
    config = tmp_path / "orchestrator.toml"
    config.write_text(configuration(slurm))
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(config))
    monkeypatch.setenv("ORCHESTRATOR_ROOT", str(tmp_path / "runs"))
    try:
        found = {finding.check: finding for finding in doctor.examine(load_settings(), "slurm")}
        assert found["compute node"].verdict == "failed", found
        soon(lambda: slurm.run("squeue", "-h", "-o", "%i").split() == blocker.split(), "a job is left")
    finally:
        slurm.run("scancel", blocker.strip())
