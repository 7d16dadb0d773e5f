"""The `torchx` program, stable and nightly, with the real service on the local backend.

Each command also runs while the service is killed and started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.torchx_scheduler import component
from tests.elastic.harness import free_port, wait_for
from tests.torchx.installed import ROOT, Installed, write_entry_points

pytestmark = pytest.mark.timeout(300)

EXAMPLES = ROOT / "docs" / "examples"
AWAY_S = 1.0
PATIENCE_S = 60.0
_TRAINS = "import time\nfrom pathlib import Path\nprint('begun', flush=True)\n" + (
    "while not Path(__file__).with_name('go').exists():\n    time.sleep(0.05)\nprint('done', flush=True)\n"
)
Torchx = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def torchx(installed: Installed, service: ThrowawayService, tmp_path: Path) -> Torchx:
    """Run `torchx` in the folder of the code."""
    folder = tmp_path / "code"
    folder.mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return installed.run(*arguments, env=environment(service, tmp_path), cwd=folder)

    return run


def environment(service: ThrowawayService, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in service.environment().items() if not name.startswith("TORCHX")}
    return {**kept, "HOME": str(home)}


@contextmanager
def undisturbed(service: ThrowawayService) -> Iterator[None]:
    yield


@contextmanager
def restarting(service: ThrowawayService) -> Iterator[None]:
    """Kill the service, and start it again while the body runs."""
    service.kill()
    back = threading.Timer(AWAY_S, service.start)
    back.start()
    try:
        yield
    finally:
        back.join(PATIENCE_S)


@pytest.mark.parametrize("meanwhile", [undisturbed, restarting])
def test_every_command(
    torchx: Torchx,
    installed: Installed,
    service: ThrowawayService,
    tmp_path: Path,
    meanwhile: Callable[[ThrowawayService], Iterator[None]],
) -> None:
    (tmp_path / "code" / "train.py").write_text(_TRAINS)

    def output(*arguments: str) -> str:
        with meanwhile(service):  # type: ignore[attr-defined]
            done = torchx(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    dry = output("run", "-s", "orchestrator", "--dryrun", "dist.ddp", "-j", "1x1", "--script", "train.py")
    assert "name: train\n" in dry
    handle = output("run", "-s", "orchestrator", "dist.ddp", "-j", "1x1", "--script", "train.py").strip()
    assert handle.startswith("orchestrator://torchx/train-")
    with Client(service.url) as client:
        job_id = handle.rpartition("/")[2]
        wait_for(lambda: "begun" in client.logs(job_id), "the job's first line")
        wait_for(lambda: client.job(job_id).state == "RUNNING", "the state RUNNING")
    assert "State: RUNNING" in output("status", handle)
    assert handle in output("list", "-s", "orchestrator")
    assert "'entrypoint': 'train.py'" in output("describe", handle)
    assert "train/0" in output("log", handle)
    output("cancel", handle)
    with Client(service.url) as client:
        wait_for(lambda: client.job(job_id).ended, "the end of the job")
    assert "State: CANCELLED" in torchx("status", handle).stdout
    if installed.is_nightly:  # torchx 0.7.0 has no such command
        output("delete", handle)
        assert torchx("status", handle).returncode == 1, "the record is gone"


def test_a_dry_run_shows_the_native_request(torchx: Torchx, service: ThrowawayService, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").touch()
    dry = torchx("run", "-s", "orchestrator", "--dryrun", "dist.ddp", "-j", "1x2", "--script", "train.py").stdout
    request = dry.partition("=== SCHEDULER REQUEST ===")[2]
    assert "trainer.elastic.elasticrun" in request
    assert "--nproc-per-node=2" in request
    assert not (service.root / ".workspaces").exists()
    with Client(service.url) as client:
        assert list(client.jobs()) == []


def test_wait_with_the_log_survives_restarts_of_the_service(
    torchx: Torchx, service: ThrowawayService, tmp_path: Path
) -> None:
    (tmp_path / "code" / "train.py").write_text(
        "import time\nfor number in range(60):\n    print(f'line {number:02}', flush=True)\n    time.sleep(0.2)\n"
    )

    def disturb() -> None:
        with Client(service.url) as client:
            wait_for(lambda: any("line 05" in client.logs(job.id) for job in client.jobs()), "the fifth line")
        for _ in range(2):
            with restarting(service):
                time.sleep(AWAY_S + 1)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    done = torchx("run", "-s", "orchestrator", "--wait", "--log", "dist.ddp", "-j", "1x1", "--script", "train.py")
    disturber.join(PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = [line.rpartition("line ")[2] for line in done.stderr.splitlines() if "train/0" in line and "line " in line]
    assert lines == [f"{number:02}" for number in range(60)]


@pytest.mark.parametrize("name", ["dist.ddp", "dist.torchrun"])
def test_an_elastic_job_continues_without_a_lost_node(
    torchx: Torchx, installed: Installed, service: ThrowawayService, tmp_path: Path, name: str
) -> None:
    if name == "dist.torchrun" and not installed.is_nightly:
        pytest.skip("torchx 0.7.0 has no dist.torchrun")
    shutil.copy(EXAMPLES / "user_ddp.py", tmp_path / "code")
    own = ("--script", "user_ddp.py", "--", "--steps", "4000", "--snapshot", str(tmp_path / "own.pt"))
    handle = torchx("run", "-s", "orchestrator", name, "-j", "1:2x1", *own).stdout.strip()
    job_id = handle.rpartition("/")[2]
    with Client(service.url) as client:
        wait_for(lambda: client.job(job_id).world_size == 2, "two workers")
        wait_for(lambda: "step" in client.logs(job_id), "a step of both")
        for process in service.processes():
            if process.replica == 1:
                os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(event.kind == "group.shrunk" for event in client.events(job_id)), "the smaller group")
        job = client.job(job_id)
        assert (job.attempts, job.spec.topology.nodes) == (1, "1:2")
        assert job.spec.supervise.budgets.application == 3
        assert torchx("cancel", handle).returncode == 0
        wait_for(lambda: client.job(job_id).ended, "the end")


def test_torchx_keeps_its_own_schedulers_and_components(torchx: Torchx) -> None:
    output = torchx("run", "--help").stdout
    for name in ("local_cwd", "local_docker", "slurm", "kubernetes", "orchestrator"):
        assert name in output
    assert "dist.ddp" in torchx("builtins").stdout


def test_our_component_runs_on_torchxs_own_scheduler(
    installed: Installed, service: ThrowawayService, tmp_path: Path
) -> None:
    """Two elastic nodes on this machine; a worker kills itself once.

    torchx 0.7.0 gets the component by its file, the nightly by its module.
    """
    (tmp_path / "train.py").write_text(
        "import os, signal\nfrom pathlib import Path\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 1:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path(f'done-{dist.get_rank()}').write_text(os.environ['WORLD_SIZE'])\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    own = "orchestrator.torchx_scheduler.component.elastic" if installed.is_nightly else f"{component.__file__}:elastic"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where elasticrun and torch are
    command = ("run", "-s", "local_cwd", own, "-j", "1:2x1", "--rdzv_port", str(free_port()), "--script", "train.py")
    done = installed.run(
        *command, env={**environment(service, tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert {file.name: file.read_text() for file in tmp_path.glob("done-*")} == {"done-0": "2", "done-1": "2"}


def test_tracker_calls_become_metrics_and_artifacts_of_the_job(
    torchx: Torchx, service: ThrowawayService, tmp_path: Path
) -> None:
    code, plugins = tmp_path / "code", tmp_path / "plugins"
    plugins.mkdir()
    write_entry_points(plugins)
    (code / ".torchxconfig").write_text("[torchx:tracker]\norchestrator =\n")
    (code / "train.py").write_text(
        "from torchx.tracker.api import AppRun\nrun = AppRun.run_from_env()\n"
        "for step in range(1, 4):\n    run.add_metadata(step=step, accuracy=step / 4)\n"
        "run.add_metadata(dataset='c4', run=run.job_id())\nrun.add_artifact('model', '/data/model.pt', {'size': 3})\n"
    )
    own = ("--env", f"PYTHONPATH={plugins}:{ROOT}", "--script", "train.py")
    started = torchx("run", "-s", "orchestrator", "--wait", "--parent_run_id", "sweep-1", "dist.ddp", "-j", "1x2", *own)
    assert started.returncode == 0, started.stderr
    handle = started.stdout.strip()
    with Client(service.url) as client:
        measured = client.metrics(handle.rpartition("/")[2])
    assert (measured.steps, measured.series["accuracy"]) == ([1, 2, 3], [0.25, 0.5, 0.75])
    metadata = torchx("tracker", "list", "metadata", handle).stdout
    assert "c4" in metadata
    assert handle in metadata, "the script's run id is torchx's handle"
    assert "/data/model.pt" in torchx("tracker", "list", "artifacts", handle).stdout
    assert handle in torchx("tracker", "list", "jobs", "--parent-run-id", "sweep-1").stdout
