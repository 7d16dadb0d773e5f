"""The twin of a worker, which frees its memory after its death."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.harness import wait_for
from trainer.elastic.health.processes import descendants, is_gone

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="twins are not tried on other machines")

WORKER = """
import os, subprocess, sys, threading
from trainer.elastic.workers.late_release import release_memory_late
twin = release_memory_late()
print(twin, release_memory_late(), flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=bytearray, args=(1 << 20,)) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert subprocess.run(["true"]).returncode == 0
pid = os.fork()
if pid == 0:
    os._exit(5)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 5  # waits for no twin
try:
    os.wait()
except ChildProcessError:
    print("worked", flush=True)
sys.exit(7)
"""


def run_entry(*arguments: str, **variables: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.elastic.late_release_entry", *arguments]
    environ = {**os.environ, **variables}
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120, env=environ).stdout)
    assert isinstance(answer, dict)
    return answer


def test_the_twin_frees_the_memory_of_a_killed_worker() -> None:
    small, large = run_entry("1"), run_entry("400")
    assert small["codes"] == large["codes"] == [-signal.SIGKILL, 0]
    assert float(str(large["twin_cpu_s"])) > 4 * float(str(small["twin_cpu_s"]))


def test_the_twin_outlives_the_interpreter_of_its_worker() -> None:
    """MALLOC_PERTURB_ overwrites freed memory (mallopt(3))."""
    assert run_entry("1", "exits", MALLOC_PERTURB_="165")["codes"] == [0, 0]


def test_the_memory_is_freed_after_a_restart() -> None:
    assert float(str(run_entry("1")["later_s"])) > 0.2


def test_the_twin_of_a_worker_that_dies_at_once_ends_too() -> None:
    for _ in range(5):
        assert run_entry("1", "at-once")["codes"] == [-signal.SIGKILL, 0]


@pytest.mark.parametrize("is_killed", [False, True], ids=["with its twin", "without"])
def test_a_worker_works_and_ends_as_usual(is_killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            first, second = worker.stdout.readline().split()
            twin = int(first)
            assert second == b"None"
            wait_for(lambda: Path(f"/proc/{twin}/comm").read_text() == "frees-memory\n", "the twin's name")
            assert [each.name for each in Path(f"/proc/{twin}/fd").iterdir()] == ["0"]  # the pidfd of the worker
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
                os.kill(twin, number)
            assert not is_gone(twin)
            assert os.getpgid(twin) == twin
            assert descendants(worker.pid) == []
            if is_killed:
                os.kill(twin, signal.SIGKILL)
            worker.stdin.write(b"\n")
            worker.stdin.close()
            assert worker.stdout.read() == b"worked\n"
            assert worker.wait(60) == 7
            wait_for(lambda: is_gone(twin), "the end of the twin")
        finally:
            worker.kill()
