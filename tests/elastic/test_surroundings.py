"""What an agent keeps for its workers: compiled code, the notice, the place for NCCL's last words."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import SCRIPTS, Job, wait_for

FAST = "--monitor-interval=0.05"


@pytest.mark.long
def test_what_the_owner_has_set_stays(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "names = 'TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_FR_DUMP_TEMP_FILE ORCHESTRATOR_NOTICE_S'\n"
        "print(*(os.environ[name] for name in names.split()), sep='\\n')\n"
    )
    agent = job.policy(stop_timeout_s=7.5).start(FAST, str(script), TORCHINDUCTOR_CACHE_DIR="/mine")
    assert agent.wait(60) == 0
    inductor, triton, trace, notice = agent.log().splitlines()
    assert inductor == "/mine"
    assert triton == str(job.folder / "cache" / "triton")
    assert trace == str(agent.folder / "g1" / "nccl-trace-")
    assert notice == "7.5"


@pytest.mark.parametrize(
    "number",
    [signal.SIGUSR1, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGUSR2, signal.SIGTERM))],
)
def test_every_kind_of_notice_reaches_workers_as_sigterm(job: Job, tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('noticed', flush=True), sys.exit(143)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    agent = job.policy().start("--nproc-per-node=2", FAST, str(script))
    agent.pids(1)
    wait_for(lambda: all("up" in agent.log(1, rank) for rank in range(2)), "start of both")
    agent.process.send_signal(number)
    assert agent.wait(90) == 143
    assert all("noticed" in agent.log(1, rank) for rank in range(2))


def test_a_killed_generation_of_a_deaf_group_is_whole_again(job: Job, tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    agent = job.policy(max_restarts=3).start("--nproc-per-node=2", FAST, str(SCRIPTS / "collective.py"), str(finish))
    for generation in range(1, 4):
        pids = agent.pids(generation)
        wait_for(lambda g=generation: {e["rank"] for e in agent.progress(g)} == {0, 1}, "step of both ranks")
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: {e["rank"] for e in agent.progress(4)} == {0, 1}, "step of both ranks")
    finish.touch()
    assert agent.wait() == 0
