"""Real scripts that work silently for several times the limit do not count as hanging. Hanging ones do."""

from __future__ import annotations

import pytest

from tests.elastic.harness import SCRIPTS, STUCK, TWO, Job, c10d, free_port

_LIMIT_S, _QUIET_S = 4.0, 20


@pytest.mark.parametrize(
    "how",
    [
        "download",
        "read",
        "read_in_thread",
        "compute",
        "compute_in_thread",
        "compute_below",
        "compute_in_daemon",
        "save",
        "wait_in_shell",
    ],
)
def test_a_quiet_script_runs_to_its_end(how: str, job: Job) -> None:
    job.policy(heartbeat_timeout_s=_LIMIT_S)
    agent = job.start(TWO, str(SCRIPTS / "quiet.py"), how, str(_QUIET_S))
    assert agent.wait(160) == 0, agent.printed()
    assert agent.events("worker.failed") == []


def test_a_hang_of_two_nodes_is_ended_by_the_agent_of_the_hanging_rank(job: Job) -> None:
    job.policy(max_restarts=1, heartbeat_timeout_s=6.0)
    port = free_port()
    agents = [
        job.start("--nnodes=2", "--nproc-per-node=1", *c10d(port, host=replica == 0), STUCK, "sleep", replica=replica)
        for replica in range(2)
    ]
    assert [agent.wait(150) for agent in agents] == [0, 0], [agent.printed() for agent in agents]
    failures = [agent.events("worker.failed") for agent in agents]
    assert [len(each) for each in failures] == [0, 1]
    sentence = str(failures[1][0]["sentence"])
    assert sentence.startswith("rank 1: no worker did anything for ")
    assert "rank 0 waits for other ranks at stuck.py:" in sentence


def test_a_hang_of_a_program_without_python_stacks_is_found(job: Job) -> None:
    """All processes of such a program must be idle."""
    job.policy(heartbeat_timeout_s=4.0)
    agent = job.start("--no-python", "sh", "-c", "sleep 600")
    assert agent.wait(100) == 1
    (failed,) = agent.events("worker.failed")
    assert "rank 0 is at an unknown line" in str(failed["sentence"])
