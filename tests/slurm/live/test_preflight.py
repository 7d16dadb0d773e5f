"""Preflight on a real Slurm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.live.lab import Lab, training

pytestmark = pytest.mark.timeout(1200)

# Python imports this first. On the second node it reports another version.
_OTHER_PYTHON = """
import os, platform
if os.environ.get("SLURMD_NODENAME") == "n2":
    platform.python_version_tuple = lambda: ("3", "99", "0")
"""


def orchestrator(lab: Lab, spec: dict[str, Any], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = folder / "job.json"
    file.write_text(json.dumps(spec))
    return lab.cli(arguments[0], str(file), *arguments[1:])


def test_healthy_nodes_pass(lab: Lab, tmp_path: Path) -> None:
    done = orchestrator(lab, training(topology={"nodes": "3"}), tmp_path, "preflight", "--json")
    report = json.loads(done.stdout)
    outcomes = {check["check"]: check["outcome"] for check in report["checks"]}
    assert [node["node"] for node in report["nodes"]] == ["n1", "n2", "n3"], done.stdout
    assert (outcomes["ports"], outcomes["versions"], outcomes["storage"], outcomes["steps"]) == ("ok",) * 4, done.stdout
    assert outcomes["pairs"] in ("ok", "warn", "fail"), "the speed of three nodes on one machine is arbitrary"


def test_a_failed_node_is_excluded_from_the_real_job(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OTHER_PYTHON)
    spec = training(topology={"nodes": "3"})
    spec["run"]["env"] = {"PYTHONPATH": str(tmp_path)}
    done = orchestrator(lab, spec, tmp_path, "submit", "--preflight")
    assert "node n2: failed versions" in done.stderr, done.stderr
    assert "trying again without n2" in done.stderr
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    lab.succeeded(job)
    assert lab.client.job(job).spec.placement.exclude[:1] == ("n2",)
