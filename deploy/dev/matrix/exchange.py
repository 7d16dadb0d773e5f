"""Snapshots that one environment writes and another one trains on from, by the installed wheel's own commands."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.matrix.venvs import Venv
from trainer.contract import env, layout
from trainer.contract.manifest import parse_snapshot_name

STRATEGIES = ("ddp", "fsdp")
_STEPS, _RESTORED = 6, 4  # the reader makes the last two steps again
_TOLERANCE = 1e-4  # of the loss, relative: releases of torch may add up in another order
_LIMIT_S = 600
_CONFIG = {
    "preset": "nano",
    "seq_len": 32,
    "data": str(Path(__file__).parents[3] / "CHANGELOG.md"),  # the standard library differs from Python to Python
    "global_batch": 8,
    "micro_batch": 2,
    "steps": _STEPS,
    "snapshot_interval": 2,
    "snapshot_keep": 10,
}


@dataclass(frozen=True)
class Exchange:
    strategy: str
    writer: str
    reader: str
    problem: str | None = None


class Refused(Exception):
    """A command failed, or its losses are not those that they should be; the text says which."""


def write_snapshots(venv: Venv, strategy: str, job_dir: Path) -> None:
    """Train for six steps on two ranks, with a snapshot at every second one. Raises Refused."""
    job_dir.mkdir(parents=True)
    _train(venv, strategy, job_dir, attempt=1)


def read_snapshots(venv: Venv, strategy: str, written: Path, job_dir: Path) -> None:
    """Verify the snapshots up to step 4, and let a second attempt train on from it, in a copy. Raises Refused."""
    shutil.copytree(written, job_dir)
    for path in sorted(layout.snapshots_dir(job_dir).iterdir()):
        name = parse_snapshot_name(path.name)
        if name is not None and name.step > _RESTORED:
            shutil.rmtree(path)
        elif name is not None:
            _run([venv.python, "-m", "trainer.snapshot", "verify", path], job_dir)
    _train(venv, strategy, job_dir, attempt=2)
    wanted, found = _losses(job_dir, 1), _losses(job_dir, 2)
    if sorted(found) != list(range(_RESTORED + 1, _STEPS + 1)):
        raise Refused(f"the steps made are {sorted(found)}")
    for step, loss in found.items():
        if not math.isclose(loss, wanted[step], rel_tol=_TOLERANCE):
            raise Refused(f"the loss of step {step} is {loss}, and was {wanted[step]} where the snapshot was written")


def _train(venv: Venv, strategy: str, job_dir: Path, *, attempt: int) -> None:
    config = json.dumps({**_CONFIG, "strategy": strategy})
    command: list[str | Path] = [
        venv.folder / "bin" / "elasticrun",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "trainer",
    ]
    _run([*command, "--config", config], job_dir, attempt)


def _losses(job_dir: Path, attempt: int) -> dict[int, float]:
    found = {}
    for path in layout.replica_dir(job_dir, attempt, 0).glob(f"*/{layout.PROGRESS}"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "loss" in line.get("metrics", {}):
                found[int(line["step"])] = float(line["metrics"]["loss"])
    return found


def _run(command: list[str | Path], job_dir: Path, attempt: int = 1) -> None:
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        env.JOB_DIR: str(job_dir),
        env.ATTEMPT: str(attempt),
        env.CLAIM: "matrix",
    }
    environ.pop("PYTHONPATH", None)
    try:
        run = subprocess.run(command, cwd=job_dir, env=environ, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{Path(command[0]).name} was not done after {_LIMIT_S} s") from error
    if run.returncode != 0:
        words = (run.stdout + run.stderr).strip().splitlines() or [f"exit status {run.returncode}"]
        raise Refused(words[-1][:300])
