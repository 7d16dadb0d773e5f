"""A node whose workers have all succeeded: its success is known to the group whatever dies next."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.elastic.harness import SCRIPTS, Agent, Job, alive, c10d, free_port, wait_for
from trainer.contract.exit_record import Outcome

PARTED = str(SCRIPTS / "parted.py")


def start_two(job: Job, folder: Path) -> list[Agent]:
    """Two nodes with one worker each. The first serves the store."""
    port = free_port()
    job.policy(max_restarts=0)
    agents = [
        job.start("--nnodes=2", *c10d(port, host=replica == 0), PARTED, str(folder), replica=replica)
        for replica in (0, 1)
    ]
    for agent in agents:
        agent.pids(1)
    wait_for(lambda: len(list(folder.glob("began-*"))) == 2, "workers")
    return agents


def test_a_success_that_only_the_lost_store_knew_is_not_forgotten(job: Job, tmp_path: Path) -> None:
    host, guest = start_two(job, tmp_path)
    paused, lost = guest.agent_pid, host.agent_pid
    os.kill(paused, signal.SIGSTOP)
    (tmp_path / "finish-0").touch()
    wait_for(lambda: list(job.attempt.glob("finished-1-*")), "success of the host")
    host.process.kill()
    wait_for(lambda: not alive(lost), "end of the host")
    os.kill(paused, signal.SIGCONT)
    wait_for(lambda: len(list(job.attempt.glob("store-*"))) == 3, "next store")
    (tmp_path / "finish-1").touch()
    assert guest.wait() == 0, guest.printed()
    assert (guest.exit_record().outcome, guest.exit_record().generation) == (Outcome.SUCCEEDED, 1)
    assert len(list(tmp_path.glob("began-1-*"))) == 1
