"""Defects of torchrun. Each test runs with both launchers: elasticrun passes, torchrun is expected to fail.

A test that begins to pass with torchrun shows that upstream has fixed the defect. Then remove its mark and our
workaround.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, TORCHRUN, alive, free_port, wait_for

PATIENCE_S = 60.0


def launchers(reason: str) -> list[object]:
    xfail = pytest.mark.xfail(strict=True, reason=f"torch 2.13: {reason}")
    return [pytest.param(ELASTICRUN, id="elasticrun"), pytest.param(TORCHRUN, id="torchrun", marks=xfail)]


@dataclass
class Stage:
    """Launchers that write to one output. Processes that they leave behind are killed at the end.

    A worker's stdout is unbuffered, so a `print` is several writes, which mix with those of other workers.
    """

    folder: Path
    launched: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    def script(self, text: str) -> str:
        path = self.folder / "script.py"
        path.write_text(text)
        return str(path)

    def launch(self, launcher: list[str], *arguments: str) -> subprocess.Popen[bytes]:
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "TORCH_"))}
        environ = outer | {"PYTHONPATH": str(ROOT), "UPSTREAM_TEST": str(self.folder)}
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen([*launcher, *arguments], env=environ, stdout=output, stderr=output)
        self.launched.append(process)
        return process

    def pids(self, text: str, count: int) -> list[int]:
        """The process ids printed after `text`, once there are `count`."""
        found = re.compile(rf"^{text} (\d+)$", re.MULTILINE)
        wait_for(lambda: len(found.findall(self.output)) >= count, f"{count} lines of {text!r}", PATIENCE_S)
        return [int(pid) for pid in found.findall(self.output)]

    def end(self) -> None:
        for process in self.launched:
            process.kill()
            process.wait(90)
        mark = f"UPSTREAM_TEST={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _holds(entry / "environ", mark):
                os.kill(int(entry.name), signal.SIGKILL)


def _holds(environ: Path, mark: bytes) -> bool:
    try:
        return mark in environ.read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    yield one
    one.end()


@pytest.mark.parametrize("launcher", launchers("the rendezvous store outlives generations, keys and all (#135712)"))
def test_a_new_generation_finds_no_key_of_the_previous_one(stage: Stage, launcher: list[str]) -> None:
    script = stage.script(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), is_master=False)\n"
        "found = store.check(['left behind'])\n"
        "dist.barrier()\n"
        "store.set('left behind', 'yes')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os._exit(1)\n"
        "print('found' if found else 'clean', flush=True)\n"
    )
    process = stage.launch(launcher, "--standalone", "--nproc-per-node=1", "--max-restarts=1", script)
    process.wait(PATIENCE_S)
    assert stage.output.splitlines()[-1] == "clean", stage.output


@pytest.mark.parametrize("launcher", launchers("workers outlive a killed agent"))
def test_no_worker_outlives_its_agent(stage: Stage, launcher: list[str]) -> None:
    script = stage.script("import os, time; os.write(1, b'worker %d\\n' % os.getpid()); time.sleep(600)")
    process = stage.launch(launcher, "--standalone", "--nproc-per-node=2", script)
    workers = stage.pids("worker", 2)
    process.kill()
    process.wait(90)
    wait_for(lambda: not any(map(alive, workers)), "end of the workers", 5)


@pytest.mark.parametrize("launcher", launchers("--shutdown-timeout has no effect on restarts, which take 30 s"))
def test_a_worker_that_ignores_sigterm_delays_a_restart_no_longer_than_the_time_out(
    stage: Stage, launcher: list[str]
) -> None:
    script = stage.script(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'worker %d\\n' % os.getpid())\n"
        "time.sleep(600)\n"
    )
    flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1"]
    stage.launch(launcher, *flags, script)
    os.kill(stage.pids("worker", 2)[0], signal.SIGKILL)
    began = time.monotonic()
    stage.pids("worker", 4)
    assert time.monotonic() - began < 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "launcher", launchers("the survivor does not publish its address to newcomers, all die after 60 s")
)
def test_a_group_takes_in_a_newcomer(stage: Stage, launcher: list[str]) -> None:
    script = stage.script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "os.write(1, b'world %d\\n' % dist.get_world_size())\n"
        "while True:\n"
        "    dist.all_reduce(torch.ones(1)); time.sleep(0.05)\n"
    )
    port = free_port()
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"
    flags = ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=grow", "--max-restarts=5"]
    flags += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    first = stage.launch(launcher, *flags, f"--rdzv-conf={conf},is_host=1", script)
    wait_for(lambda: "world 1" in stage.output, "first world", PATIENCE_S)
    second = stage.launch(launcher, *flags, f"--rdzv-conf={conf},is_host=0", script)
    running: Callable[[], bool] = lambda: first.poll() is None and second.poll() is None  # noqa: E731
    wait_for(lambda: "world 2" in stage.output or not running(), "the larger group, or an end", 120)
    assert running()


def test_a_job_leaves_nothing_in_the_temporary_folder(stage: Stage) -> None:
    temporary = stage.folder / "tmp"
    temporary.mkdir()
    job = {"ORCHESTRATOR_JOB_DIR": str(stage.folder / "job"), "ORCHESTRATOR_CLAIM": "mine", "TMPDIR": str(temporary)}
    environ = {**os.environ, **job, "PYTHONPATH": str(ROOT)}
    command = [*ELASTICRUN, stage.script("print('ok')")]
    subprocess.run(command, env=environ, timeout=PATIENCE_S, check=True, capture_output=True)
    assert not list(temporary.glob("torchelastic_*"))
