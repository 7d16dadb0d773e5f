"""The workers' environment in a job, and the notice that they get before a stop."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.elastic.harness import TWO, Job, alive, wait_for
from trainer.contract.exit_record import Outcome


@pytest.mark.long
def test_variables_of_the_jobs_owner_take_precedence(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "names = 'TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_FR_DUMP_TEMP_FILE ORCHESTRATOR_NOTICE_S'\n"
        "print(*(os.environ[name] for name in names.split()), sep='\\n')\n"
    )
    agent = job.policy(stop_timeout_s=7.5).start(str(script), TORCHINDUCTOR_CACHE_DIR="/mine")
    assert agent.wait(300) == 0
    inductor, triton, trace, notice = agent.log().splitlines()
    assert inductor == "/mine"
    assert triton == str(job.folder / "cache" / "triton")
    assert trace == str(agent.folder / "g1" / "nccl-trace-")
    assert notice == "7.5"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_every_kind_of_notice_reaches_workers_as_sigterm(job: Job, tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('noticed', flush=True), sys.exit(143)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    agent = job.policy().start(TWO, str(script))
    pids = agent.pids(1)
    wait_for(lambda: all("up" in agent.log(1, rank) for rank in range(2)), "start of both")
    agent.process.send_signal(number)
    assert agent.wait(90) == 143
    assert agent.exit_record().outcome is Outcome.PREEMPTED
    assert all("noticed" in agent.log(1, rank) for rank in range(2))
    assert not any(map(alive, pids.values()))
