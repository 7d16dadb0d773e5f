"""Stacks, requested faults and deletion, with a real service and real agents."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.recovery.agents import find_agent
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client, RequestRefused
from orchestrator.domain.errors import NotFound
from tests.jobs import ended, python_job, running, until

_WAITS = """
import os, time
from pathlib import Path

def wait_here():
    Path(f"began.{os.environ['RANK']}").touch()
    time.sleep(600)

wait_here()
"""


def test_a_running_job_shows_its_stacks_and_nodes_and_survives_a_requested_kill(client: Client, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(_WAITS)
    run = {"script": "waits.py", "workdir": str(tmp_path)}
    job = until(client, client.submit({**python_job("", workers=2), "run": run}).id, running)
    until(client, job.id, lambda _: len(list(tmp_path.glob("began.*"))) == 2)
    client.ask_stacks(job.id)
    until(client, job.id, lambda _: {each.rank for each in client.stacks(job.id)} == {0, 1})
    assert all("wait_here" in (each.text or "") for each in client.stacks(job.id))
    (node,) = client.job_nodes(job.id)
    assert (node.replica, node.ended) == (0, None)
    client.chaos(job.id, "kill", node=node.name)
    until(client, job.id, lambda seen: seen.restarts == 1)
    cause = client.why(job.id).cause
    assert cause is not None
    assert cause.chaos is not None
    assert (cause.chaos.fault.value, cause.chaos.actor, cause.failure.rank) == ("kill", "local", 1)
    client.cancel(job.id)
    assert until(client, job.id, ended).state == "CANCELLED"
    with pytest.raises(RequestRefused, match="has ended CANCELLED"):
        client.chaos(job.id, "kill")


def test_a_deletion_removes_files_only_on_request(service: ThrowawayService, client: Client) -> None:
    kept, gone = (client.submit(python_job("print('done')")).id for _ in range(2))
    for job_id in (kept, gone):
        assert until(client, job_id, ended).state == "SUCCEEDED"
    assert client.delete(gone, snapshots="delete").files_due
    assert not client.delete(kept).files_due
    with pytest.raises(NotFound):
        client.job(gone)
    other = client.submit(python_job("pass")).id

    def is_gone(_: object) -> bool:
        return not any(path.name.endswith(gone) for path in service.root.iterdir())

    until(client, other, is_gone)
    assert (service.root / kept / "attempts").is_dir()


@pytest.mark.parametrize("whole", [False, True], ids=["agent", "agent and workers"])
def test_a_paused_job_continues_in_the_same_generation(
    service: ThrowawayService, client: Client, tmp_path: Path, whole: bool
) -> None:
    (tmp_path / "waits.py").write_text(_WAITS)
    run = {"script": "waits.py", "workdir": str(tmp_path)}
    job = until(client, client.submit({**python_job("", workers=2), "run": run}).id, running)
    until(client, job.id, lambda _: len(list(tmp_path.glob("began.*"))) == 2)
    keeper = next(process.pid for process in service.processes() if process.is_agent)
    agent = find_agent(keeper)
    assert agent is not None
    pids = [process.pid for process in service.processes()] if whole else [agent]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    back_s = time.monotonic() + 12.0
    until(client, job.id, lambda _: time.monotonic() > back_s)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    client.ask_stacks(job.id)
    until(client, job.id, lambda _: {each.rank for each in client.stacks(job.id)} == {0, 1})  # the agent runs again
    client.ask_stacks(job.id)
    until(client, job.id, lambda _: sum(event.kind == "stacks.saved" for event in client.events(job.id)) == 2)
    assert [event.kind for event in client.events(job.id)].count("generation.started") == 1
    assert client.job(job.id).attempts == 1
