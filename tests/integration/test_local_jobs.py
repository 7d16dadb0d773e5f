"""Jobs on this machine, with a real service and real processes."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from torchx.specs import macros

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.job.masking import MASK
from tests.conftest import quick_service
from tests.jobs import ended, python_job, running, until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    with quick_service(tmp_path_factory.mktemp("shared") / "runs") as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ThrowawayService]:
    """A service that the test may end."""
    with quick_service(tmp_path / "runs") as running:
        yield running


FOREVER = "import time; time.sleep(600)"


def test_a_script_that_raises_fails_the_job_with_its_traceback(client: Client) -> None:
    job = until(client, client.submit(python_job("raise ValueError('no such luck')")).id, ended)
    assert job.state == "FAILED"
    assert job.failure is not None
    assert job.failure.kind == "application"
    assert "ValueError: no such luck" in job.failure.message
    assert "Traceback" in (job.failure.traceback or "")
    assert "no such luck" in client.logs(job.id)


def test_a_cancellation_ends_every_process_of_the_job(service: ThrowawayService, client: Client) -> None:
    job = until(client, client.submit(python_job(FOREVER, workers=2)).id, running)
    assert len(list(service.processes())) >= 3
    client.cancel(job.id)
    assert until(client, job.id, ended).state == "CANCELLED"
    assert list(service.processes()) == []


def test_a_service_killed_with_sigkill_adopts_its_jobs_at_the_next_start(own: ThrowawayService, tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    code = f"import os, time\nwhile not os.path.exists({str(finish)!r}): time.sleep(0.05)"
    with Client(own.url) as client:
        job = until(client, client.submit(python_job(code)).id, running)
    before = {process.pid for process in own.processes()}
    own.kill()
    own.start()
    with Client(own.url) as again:
        assert before <= {process.pid for process in own.processes()}
        finish.touch()
        found = until(again, job.id, ended)
        assert (found.state, found.attempts) == ("SUCCEEDED", 1)


def test_the_service_may_open_many_files_and_its_jobs_as_many_as_usual(tmp_path: Path) -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    fewer = usual // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, most))
    try:
        with quick_service(tmp_path / "runs") as own, Client(own.url) as client:
            assert resource.prlimit(own.pid, resource.RLIMIT_NOFILE) == (most, most)
            code = "import resource; print('limits', resource.getrlimit(resource.RLIMIT_NOFILE))"
            job = until(client, client.submit(python_job(code)).id, ended)
            assert f"limits {(fewer, most)}" in client.logs(job.id)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


@pytest.mark.long
def test_the_workers_of_a_killed_agent_do_not_outlive_it(service: ThrowawayService, client: Client) -> None:
    job = until(client, client.submit(python_job(FOREVER, workers=2)).id, running)
    workers = [process for process in service.processes() if process.local_rank is not None]
    agents = [process for process in service.processes() if process.is_agent]
    os.kill(agents[0].pid, signal.SIGKILL)
    until(client, job.id, lambda seen: seen.attempts == 2)
    assert not {worker.pid for worker in workers} & {process.pid for process in service.processes()}
    client.cancel(job.id)
    until(client, job.id, ended)  # the slots are for the next test


@pytest.mark.long
def test_two_replicas_on_one_machine_form_one_group(client: Client) -> None:
    code = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    spec = python_job(code, topology={"nodes": "2", "workers_per_node": 2})
    job = until(client, client.submit(spec).id, ended)
    assert job.state == "SUCCEEDED"
    assert {f"rank {rank} of 4" in client.logs(job.id) for rank in range(4)} == {True}


def test_what_runs_is_the_appdef_that_the_service_shows(service: ThrowawayService, client: Client) -> None:
    """Torchx fills in its macros as it does for each of its schedulers."""
    run = {
        "command": [sys.executable, "-c", FOREVER, "$HOME", "${app_id}"],
        "workdir": "/",
        "env": {"COLOR": "$red ${replica_id}"},
    }
    spec = python_job("", run=run, topology={"nodes": "2", "workers_per_node": 1})
    job = until(client, client.submit(spec).id, running)
    shown = httpx.get(f"{service.url}/api/v1/jobs/{job.id}/request", timeout=60).json()["appdef"]
    (role,) = shown["roles"]
    assert (shown["name"], role["num_replicas"]) == (f"{job.id}-a1", 2)
    for replica in range(2):
        values = macros.Values(img_root="", app_id="", replica_id=str(replica), rank0_env="")
        command = [role["entrypoint"], *(values.substitute(word) for word in role["args"])]
        variables = {name: values.substitute(value) for name, value in role["env"].items() if value != MASK}
        agents = [each.pid for each in service.processes() if each.is_agent and each.replica == replica]
        running_now = {pid: _read_words(pid, "cmdline") for pid in agents}
        pid = next((pid for pid, words in running_now.items() if words == command), None)
        assert pid is not None, (command, running_now)
        environ = dict(word.split("=", 1) for word in _read_words(pid, "environ"))
        assert variables.items() <= environ.items()
        assert environ["COLOR"] == "$red ${replica_id}"
    client.cancel(job.id)
    until(client, job.id, ended)


def _read_words(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().rstrip("\0").split("\0")


def test_a_job_under_plain_torchrun_is_supervised(client: Client) -> None:
    code = "import os; print('restart', os.environ['TORCHELASTIC_RESTART_COUNT'])"
    job = until(client, client.submit(python_job(code, launcher="torchrun", workers=2)).id, ended)
    assert job.state == "SUCCEEDED"
    assert "restart 0" in client.logs(job.id)


@pytest.mark.long
def test_a_job_under_plain_torchrun_without_reports_is_running(client: Client) -> None:
    """Otherwise it would be stopped as a group that never formed."""
    job = until(client, client.submit(python_job(FOREVER, launcher="torchrun")).id, running)
    assert client.why(job.id).verdict.startswith("Running on 1 node.")
    client.cancel(job.id)
    until(client, job.id, ended)


def test_a_second_service_on_the_same_database_is_refused(service: ThrowawayService) -> None:
    second = ThrowawayService(service.root)
    with pytest.raises(Exception, match=str(service.pid)):
        second.start()
    second.stop()


def test_a_taken_port_at_start_is_reported_with_advice(service: ThrowawayService, tmp_path: Path) -> None:
    taken = service.url.rsplit(":", 1)[1]
    other = ThrowawayService(tmp_path / "other", {"ORCHESTRATOR_PORT": taken})
    with pytest.raises(Exception, match="ORCHESTRATOR_PORT"):
        other.start()
    other.stop()


@pytest.mark.long
def test_sigterm_ends_the_service_and_leaves_its_jobs_running(own: ThrowawayService) -> None:
    with Client(own.url) as client:
        job = until(client, client.submit(python_job(FOREVER)).id, running)
    assert own.stop() == 0
    assert list(own.processes())
    assert not (own.root / "service.json").exists()
    assert job.id
