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
    (restored,) = told["restored"]
    step = 12 if told["steps_redone"] == 2 else 8  # the newest snapshot, or that before one still under way
    assert restored == f"restored step {step} from step-{step:08}-a1-g1 (world size 2 → 2)"
    assert told["largest_difference"] == 0
    assert (told["fault"], told["recovered"], told["steps_redone"]) == ("kill", True, 14 - step)
    assert told["seconds_to_next_step"] >= 0


@pytest.mark.parametrize(
    ("fault", "redone"), [("node-loss", 2), ("preempt", 0), ("corrupt-snapshot", 6), ("disk-full", 0)]
)
def test_a_drill_injects_other_faults_and_finds_the_same_curve(
    service: ThrowawayService, tmp_path: Path, fault: str, redone: int
) -> None:
    """Two of a notice leave a snapshot; of a damaged one the one before it is restored."""
    done = orchestrator(service, tmp_path, "drill", "--steps=24", f"--fault={fault}", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["problems"], told["recovered"]) == ("passed", [], True)
    assert told["largest_difference"] == 0
    assert told["steps_redone"] >= 0
    assert told["steps_redone"] <= redone + 4, "peers may be a step ahead, a snapshot may be under way"


def test_a_preflight_has_a_verdict_for_each_check(service: ThrowawayService, tmp_path: Path) -> None:
    done = orchestrator(service, tmp_path, "preflight", "--json")
    told = json.loads(done.stdout)
    outcomes = {check["check"]: check["outcome"] for check in told["checks"]}
    assert (done.returncode, told["verdict"]) == (0, "passed"), done.stdout
    assert outcomes.pop("names") in ("ok", "warn"), "a machine may not know its own name"
    one_node = dict.fromkeys(("ports", "clocks", "pairs"), "skipped")
    assert outcomes == {**one_node, "versions": "ok", "storage": "ok", "bandwidth": "ok", "steps": "ok"}
    assert [node["failed"] for node in told["nodes"]] == [[]]


def test_a_job_whose_place_is_good_is_submitted_and_one_whose_place_is_not_is_not(
    service: ThrowawayService, tmp_path: Path
) -> None:
    good = orchestrator(service, tmp_path, "submit", "--preflight", "--set", "run.trainer.steps=3", "--wait")
    assert (good.returncode, "preflight passed" in good.stderr) == (0, True), good.stderr
    assert good.stdout.startswith("tiny-")
    bad = orchestrator(service, tmp_path, "submit", "--preflight", "--set", "run.trainer.data=/nowhere/corpus.txt")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "nothing is submitted" in bad.stderr
