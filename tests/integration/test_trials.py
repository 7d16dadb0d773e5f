"""`drill` and `preflight` through the command line, a real service and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService

pytestmark = pytest.mark.timeout(180)

SPEC = {
    "name": "tiny",
    "run": {"trainer": {"global_batch": 4, "micro_batch": 2, "seq_len": 32, "strategy": "ddp"}, "workdir": "/tmp"},
    "topology": {"workers_per_node": 2},
    "supervise": {"backoff_s": [0.1, 0.2]},
}


def orchestrator(service: ThrowawayService, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = folder / "job.json"
    file.write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "orchestrator.cli", arguments[0], str(file), *arguments[1:]]
    environment = service.environment() | {"ORCHESTRATOR_URL": service.url}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)


def test_a_drill_kills_a_worker_and_finds_the_same_curve(service: ThrowawayService, tmp_path: Path) -> None:
    done = orchestrator(service, tmp_path, "drill", "--steps=24", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], told["problems"]) == (0, "passed", [])
    assert told["restored"] == ["restored step 12 from step-00000012-a1-g1 (world size 2 → 2)"]
    assert told["largest_difference"] == 0


def test_a_preflight_has_a_verdict_for_each_check(service: ThrowawayService, tmp_path: Path) -> None:
    done = orchestrator(service, tmp_path, "preflight", "--json")
    told = json.loads(done.stdout)
    outcomes = {check["check"]: check["outcome"] for check in told["checks"]}
    assert (done.returncode, told["verdict"]) == (0, "passed"), done.stdout
    assert outcomes.pop("names") in ("ok", "warn"), "a machine may not know its own name"
    assert outcomes == {"clocks": "skipped", "storage": "ok", "bandwidth": "ok", "steps": "ok"}
