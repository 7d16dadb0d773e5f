"""A process that waits for a child misses no signal, even one that arrives just before the wait.

A test cannot hit that moment, but an equivalent case: a signal that the kernel delivers to another thread does not
interrupt the wait either.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, GUARD, Job, signal_another_thread, wait_for

UNTIL_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "program", [pytest.param(GUARD, id="guard"), pytest.param(ELASTICRUN, id="elasticrun", marks=pytest.mark.long)]
)
def test_an_agent_handles_a_signal_that_another_of_its_threads_receives(
    job: Job, tmp_path: Path, program: list[str]
) -> None:
    (tmp_path / "script.py").write_text(UNTIL_SIGTERM)
    script = [str(tmp_path / "script.py"), str(tmp_path / "up")]
    agent = job.policy().start(*([sys.executable, *script] if program is GUARD else script), program=program)
    wait_for((tmp_path / "up").exists, "script")
    signal_another_thread(agent.process.pid, signal.SIGTERM)
    assert agent.wait(300) == 143


def test_a_wait_ends_after_an_earlier_signal_and_after_the_end_of_a_child() -> None:
    """Run the test in a new process, because signals are handled on the main thread."""
    code = """
import signal, subprocess, sys, threading
from trainer.elastic.workers.wakeup import Wakeup
received = []
signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
wakeup = Wakeup()
other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
other.start()
wakeup.wait()
assert received, "woken without a signal"
other.join()
assert wakeup.wait_for(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])) == 7
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
