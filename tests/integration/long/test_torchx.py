"""The `torchx` program with a real service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService

TORCHX = Path(sys.executable).with_name("torchx")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def torchx(service: ThrowawayService, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**service.environment(), "ORCHESTRATOR_URL": service.url, "HOME": str(cwd)}
    return subprocess.run(
        [TORCHX, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_torchx_runs_a_ddp_script_and_shows_its_status_and_log(service: ThrowawayService, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "user_ddp.py", tmp_path)
    own = ("--script", "user_ddp.py", "--", "--steps", "30", "--snapshot", str(tmp_path / "own.pt"))
    started = torchx(service, tmp_path, "run", "--wait", "-s", "orchestrator", "dist.ddp", "-j", "1x2", *own)
    assert started.returncode == 0, started.stderr
    handle = started.stdout.split()[0]
    assert handle.startswith("orchestrator://torchx/")
    status = torchx(service, tmp_path, "status", handle)
    assert "SUCCEEDED" in status.stdout
    log = torchx(service, tmp_path, "log", handle)
    assert "step" in log.stdout
    listed = torchx(service, tmp_path, "list", "-s", "orchestrator")
    assert handle.rpartition("/")[2] in listed.stdout


def test_torchx_cancels_a_running_job(service: ThrowawayService, tmp_path: Path) -> None:
    (tmp_path / "forever.py").write_text("import time\ntime.sleep(600)\n")
    started = torchx(service, tmp_path, "run", "-s", "orchestrator", "dist.ddp", "-j", "1x1", "--script", "forever.py")
    handle = started.stdout.split()[0]
    assert torchx(service, tmp_path, "cancel", handle).returncode == 0
    final = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "show", "--wait", handle.rpartition("/")[2]],
        env={**os.environ, "ORCHESTRATOR_URL": service.url},
        timeout=300,
        check=False,
    )
    assert final.returncode == 1
    assert "CANCELLED" in torchx(service, tmp_path, "status", handle).stdout
    assert list(service.processes()) == []


@pytest.mark.parametrize("word", ["auto", "cpu"])
def test_one_worker_is_started_for_each_requested_cpu(word: str, service: ThrowawayService, tmp_path: Path) -> None:
    (tmp_path / "size.py").write_text("import os\nprint('one of', os.environ['WORLD_SIZE'])\n")
    torchrun = ("torchrun", f"--nproc-per-node={word}", "size.py")
    done = torchx(service, tmp_path, "run", "--wait", "-s", "orchestrator", "utils.sh", "--cpu", "3", *torchrun)
    assert done.returncode == 0, done.stderr
    log = torchx(service, tmp_path, "log", done.stdout.split()[0])
    assert log.stdout.count("one of 3") == 3, log


def test_one_worker_for_each_gpu_is_refused_without_gpus(service: ThrowawayService, tmp_path: Path) -> None:
    (tmp_path / "size.py").touch()
    torchrun = ("torchrun", "--nproc-per-node=gpu", "size.py")
    done = torchx(service, tmp_path, "run", "-s", "orchestrator", "utils.sh", *torchrun)
    assert done.returncode != 0
    assert "is 'gpu', but cluster local has no GPU" in done.stdout + done.stderr
