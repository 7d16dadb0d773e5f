"""`drill` and `preflight` on the command line, with a real service and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService

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


def test_a_drill_with_a_kill_finds_the_same_curve(service: ThrowawayService, tmp_path: Path) -> None:
    done = orchestrator(service, tmp_path, "drill", "--steps=24", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["problems"]) == (0, "passed", [])
    (restored,) = report["restored"]
    step = 12 if report["steps_redone"] == 2 else 8  # the newest snapshot, or that before one still under way
    assert restored == f"restored step {step} from step-{step:08}-a1-g1 (world size 2 → 2)"
    assert report["largest_difference"] == 0
    assert (report["fault"], report["recovered"], report["steps_redone"]) == ("kill", True, 14 - step)
    assert report["seconds_to_next_step"] >= 0


@pytest.mark.parametrize(
    ("fault", "redone"), [("node-loss", 2), ("preempt", 0), ("corrupt-snapshot", 6), ("disk-full", 0)]
)
def test_a_drill_with_another_fault_finds_the_same_curve(
    service: ThrowawayService, tmp_path: Path, fault: str, redone: int
) -> None:
    """A notice saves a snapshot, so no step is repeated. With a damaged one, the previous one is restored."""
    done = orchestrator(service, tmp_path, "drill", "--steps=24", f"--fault={fault}", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["verdict"], report["problems"], report["recovered"]) == ("passed", [], True)
    assert report["largest_difference"] == 0
    assert report["steps_redone"] >= 0
    assert report["steps_redone"] <= redone + 4, "peers may be a step ahead, a snapshot may be under way"


def test_a_preflight_has_a_verdict_for_each_check(service: ThrowawayService, tmp_path: Path) -> None:
    done = orchestrator(service, tmp_path, "preflight", "--json")
    report = json.loads(done.stdout)
    outcomes = {check["check"]: check["outcome"] for check in report["checks"]}
    assert (done.returncode, report["verdict"]) == (0, "passed"), done.stdout
    assert outcomes.pop("names") in ("ok", "warn"), "a machine may not know its own name"
    one_node = dict.fromkeys(("ports", "clocks", "pairs"), "skipped")
    assert outcomes == {**one_node, "versions": "ok", "storage": "ok", "bandwidth": "ok", "steps": "ok"}
    assert [node["failed"] for node in report["nodes"]] == [[]]


def test_a_job_is_submitted_only_if_its_preflight_passes(service: ThrowawayService, tmp_path: Path) -> None:
    good = orchestrator(service, tmp_path, "submit", "--preflight", "--set", "run.trainer.steps=3", "--wait")
    assert (good.returncode, "preflight passed" in good.stderr) == (0, True), good.stderr
    assert good.stdout.startswith("tiny-")
    bad = orchestrator(service, tmp_path, "submit", "--preflight", "--set", "run.trainer.data=/nowhere/corpus.txt")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "nothing is submitted" in bad.stderr
