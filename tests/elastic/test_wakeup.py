"""Whoever waits for a child hears every signal, also one that comes a moment before the wait.

Such a moment cannot be hit at will, but its like can: a signal that the kernel hands to a thread that does not wait is
remembered by Python in the same way, and the wait goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, GUARD, Job, signal_another_thread, wait_for

UNTIL_TOLD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("program", [GUARD, ELASTICRUN], ids=["guard", "elasticrun"])
def test_an_agent_hears_a_signal_that_another_of_its_threads_was_given(
    job: Job, tmp_path: Path, program: list[str]
) -> None:
    (tmp_path / "script.py").write_text(UNTIL_TOLD)
    script = [str(tmp_path / "script.py"), str(tmp_path / "up")]
    agent = job.policy().start(*([sys.executable, *script] if program is GUARD else script), program=program)
    wait_for((tmp_path / "up").exists, "script")
    signal_another_thread(agent.process.pid, signal.SIGTERM)
    assert agent.wait(30) == 143


def test_a_wait_ends_by_a_signal_that_came_before_it_and_by_a_child_s_end(tmp_path: Path) -> None:
    """In a process of its own: signals belong to its main thread."""
    code = """
import signal, subprocess, sys, threading
from trainer.elastic.workers.wakeup import Wakeup
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
wakeup = Wakeup()
other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
other.start()
wakeup.wait()
assert heard, "woken by nothing"
other.join()
assert wakeup.outlast(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])) == 7
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
