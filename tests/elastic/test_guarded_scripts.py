"""The guard treats scripts under another launcher as elasticrun does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.elastic.harness import CHILD, GUARD, TORCHRUN, Job, alive, wait_for

_DAEMON = """\
import subprocess, sys
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(str(daemon.pid))
"""
_ORPHAN = """\
import os, subprocess, time
pid = subprocess.run(["sh", "-c", "true & echo $!"], capture_output=True, text=True).stdout.strip()
while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
"""
_TAKES_RANK = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--local_rank', type=int, default=0)\n"
)
LAUNCHER = [*TORCHRUN, "--no-python", sys.executable, "-I", "-S", CHILD]


def test_a_daemon_ends_with_the_guard(job: Job, tmp_path: Path) -> None:
    agent = job.policy().start(sys.executable, "-c", _DAEMON, str(tmp_path / "pid"), program=GUARD)
    assert agent.wait() == 0
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not alive(pid), "end of the daemon")


def test_an_orphan_is_reaped_while_the_launcher_runs(job: Job) -> None:
    assert job.policy().start(sys.executable, "-c", _ORPHAN, program=GUARD).wait() == 0


@pytest.mark.long
def test_a_guarded_script_gets_its_local_rank_or_advice(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_TAKES_RANK + "print(parser.parse_args().local_rank)")
    passed = job.policy().start(
        *LAUNCHER, sys.executable, "-u", str(script), "--local-rank=${local_rank}", program=GUARD
    )
    assert passed.wait() == 0, passed.log()
    assert "run.pass_local_rank" not in passed.printed()
    without = job.start(*LAUNCHER, sys.executable, "-u", str(script), program=GUARD)
    assert without.wait() == 0
    assert without.printed().count("run.pass_local_rank") == 1


@pytest.mark.parametrize(
    ("replica", "conf", "made"),
    [
        (0, "join_timeout=9", "is_host=1,join_timeout=9"),
        (1, "join_timeout=9", "is_host=0,join_timeout=9"),
        (1, "join_timeout=9,is_host=1", "join_timeout=9,is_host=1"),
    ],
)
def test_replica_0_and_no_other_serves_the_store_of_torchrun(job: Job, replica: int, conf: str, made: str) -> None:
    command = [sys.executable, "-c", "import sys; print('given:', *sys.argv[1:])"]
    for flags in ([f"--rdzv-conf={conf}"], []):
        agent = job.policy().start(*command, *flags, "script", program=GUARD, replica=replica)
        assert agent.wait() == 0
    given = [line for line in agent.printed().splitlines() if line.startswith("given:")]
    assert given == [f"given: --rdzv-conf={made} script", "given: script"]


def test_torchrun_leaves_nothing_in_the_temporary_folder(job: Job, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    agent = job.policy().start(*LAUNCHER, sys.executable, "-c", "pass", program=GUARD, TMPDIR=str(temporary))
    assert agent.wait() == 0, agent.printed()
    assert list(temporary.iterdir()) == []
