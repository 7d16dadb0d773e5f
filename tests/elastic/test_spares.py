"""Spare workers, without the fork server: a new interpreter of each test is their parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, alive, wait_for

PRELUDE = """
import json, os, signal, sys, time
from pathlib import Path
from trainer.elastic.workers.spares import Spares

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

def work(order):
    if order is not None:
        Path(order["path"]).write_text(f"{os.getpid()} {order['text']}")
        os._exit(0)

spares = Spares()
spares.wanted = 2
"""
WARMUP = """
import time
from pathlib import Path
def warm_up(folder):
    folder.mkdir()
    while not Path("go").exists():
        time.sleep(0.005)
    folder.rmdir()
"""


def run(folder: Path, text: str) -> str:
    """Run a script that forks spares. In a spare, `work` carries out the order. Returns the output."""
    (folder / "main.py").write_text(PRELUDE + text)
    done = subprocess.run(
        [sys.executable, "main.py"],
        env={"PYTHONPATH": f"{ROOT}:{folder}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_an_order_goes_to_a_ready_spare(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
assert spares.give({}) is None and spares.has_work
work(spares.fork_one())
assert not spares.has_work, "one after the other"
until(lambda: (ready := spares.collect_ready()) and print(min(ready.values()) > 0) is None)
assert spares.has_work and spares.ends == []
work(spares.fork_one())
until(spares.collect_ready)
assert not spares.has_work
pids = spares.pids
given = {spares.give({"path": f"order-{number}", "text": number}): number for number in (1, 2)}
assert given.keys() == pids and spares.pids == set()
for pid, number in given.items():
    assert os.waitpid(pid, 0)[1] == 0
    assert Path(f"order-{number}").read_text() == f"{pid} {number}"
""",
    )
    assert output == "True\n"


def test_a_spare_needs_no_right_to_change_its_oom_score(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from trainer.elastic.workers import spares as module
module._OOM_SCORE = Path("absent/oom_score_adj")
work(spares.fork_one())
until(spares.collect_ready)
pid = spares.give({"path": "order", "text": "works"})
assert os.waitpid(pid, 0)[1] == 0
assert Path("order").read_text() == f"{pid} works"
""",
    )


def test_a_spare_that_warms_up_is_paused_while_a_group_starts(tmp_path: Path) -> None:
    (tmp_path / "warmup.py").write_text(WARMUP)
    output = run(
        tmp_path,
        """
spares.warmup = "warmup"
work(spares.fork_one())
(pid,) = spares.pids
folder = spares._scratch.path
until(lambda: list(folder.iterdir()))
spares.pause()
until(lambda: state(pid) == "T")
assert spares.has_work and spares.give({}) is None
Path("go").touch()
work(spares.fork_one())
assert spares.pids == {pid} and not spares.has_work, "it continues, and no other is forked"
until(spares.collect_ready)
assert list(folder.iterdir()) == []
spares.sweep()
assert not folder.exists()
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
""",
    )
    assert output == ""


def test_a_dead_spare_gets_no_order_and_is_not_replaced(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
work(spares.fork_one())
until(spares.collect_ready)
(pid,) = spares.pids
os.kill(pid, signal.SIGKILL)
until(lambda: state(pid) == "Z")
assert spares.give({"path": "order", "text": ""}) is None
spares.wanted = 2
work(spares.fork_one())
(pid,) = spares.pids
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
spares.forget(pid)
assert spares.pids == set() and not spares.has_work
""",
    )


@pytest.mark.parametrize(
    "warmup", ["import nothing_of_this_name", "def warm_up(folder):\n    raise OSError('disk full')"]
)
def test_a_failed_warmup_is_logged_once(tmp_path: Path, warmup: str) -> None:
    (tmp_path / "warmup.py").write_text(warmup)
    output = run(
        tmp_path,
        """
spares.warmup = "warmup"
work(spares.fork_one())
until(lambda: spares.collect_ready() or not spares.pids)
assert not spares.has_work
spares.sweep()
""",
    )
    assert output.startswith("elasticrun: restarts will be slower, because a spare worker cannot warm up: ")
    assert len(output.splitlines()) == 1


def test_a_spare_ends_with_its_parent(tmp_path: Path) -> None:
    pid = run(tmp_path, "work(spares.fork_one())\nuntil(spares.collect_ready)\nprint(*spares.pids)\n")
    wait_for(lambda: not alive(int(pid)), "end of the spare")
