"""The faults of local jobs at default settings: the rows of docs/failures.md."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.dev.killing import kill_at_once
from deploy.dev.service import Marked, ThrowawayService
from orchestrator.client import Client
from orchestrator.wire.job_views import JobView
from tests.conftest import mount_small_disk
from tests.faults.cells import check, tell
from tests.faults.training_jobs import SAVES, end, fill_disk, goes_on, now, over, training, trains

pytestmark = pytest.mark.timeout(900)

NAMES = {socket.gethostname(): "this machine"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    with ThrowawayService(tmp_path_factory.mktemp("local") / "runs") as service:
        yield service


@pytest.fixture
def client(runs: ThrowawayService) -> Iterator[Client]:
    with Client(runs.url) as connected:
        yield connected


def inject(
    runs: ThrowawayService, job: JobView, chosen: Callable[[Marked], bool], how: signal.Signals = signal.SIGKILL
) -> None:
    targets = [each for each in runs.processes() if each.job_id == job.id and chosen(each)]
    assert targets, "no such process"
    if how is signal.SIGKILL:
        kill_at_once(each.pid for each in targets)
        return
    for each in targets:
        with suppress(ProcessLookupError):
            os.kill(each.pid, how)


def kill_all(runs: ThrowawayService) -> None:
    while processes := list(runs.processes()):
        kill_at_once(each.pid for each in processes)


def any_process(_: Marked) -> bool:
    return True


def last_worker(process: Marked) -> bool:
    return process.local_rank == 1


def agent(process: Marked) -> bool:
    return process.is_agent


def second_agent(process: Marked) -> bool:
    return process.is_agent and process.replica == 1


def first_replica(process: Marked) -> bool:
    return process.replica == 0


@pytest.mark.parametrize(
    ("fault", "nodes", "chosen", "how"),
    [
        ("a worker is killed", 1, last_worker, signal.SIGKILL),
        ("a worker hangs", 1, last_worker, signal.SIGSTOP),
        ("an agent is killed", 1, agent, signal.SIGKILL),
        ("a replica is evicted", 2, second_agent, signal.SIGTERM),
        ("the job is preempted", 2, agent, signal.SIGTERM),
        ("it is deleted by hand", 1, any_process, signal.SIGKILL),
        ("the node of the store is lost", 2, first_replica, signal.SIGKILL),
    ],
    ids=lambda value: str(value).replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_signal(
    runs: ThrowawayService,
    client: Client,
    fault: str,
    nodes: int,
    chosen: Callable[[Marked], bool],
    how: signal.Signals,
) -> None:
    """Evicted and preempted: SIGTERM to one agent, to all agents. Deleted by hand: SIGKILL to all processes."""
    job = trains(client, training(nodes=nodes))
    injected_at = now()
    inject(runs, job, chosen, how)
    goes_on(client, job.id, injected_at)
    check("local", fault, tell(client, job.id, injected_at, names=NAMES))
    end(client, job.id)


def test_a_worker_runs_out_of_memory(client: Client, tmp_path: Path) -> None:
    greed = tmp_path / "greed"
    job = trains(client, training(greed=str(greed)))
    injected_at = now()
    greed.touch()
    goes_on(client, job.id, injected_at)
    check("local", "a worker runs out of memory", tell(client, job.id, injected_at, names=NAMES))
    end(client, job.id)


def test_the_time_limit_is_reached(client: Client) -> None:
    job = client.submit(training(supervise={"max_runtime_s": 20}))
    over(client, job.id)
    (attempt,) = client.attempts(job.id)
    assert attempt.started_at is not None
    injected_at = attempt.started_at + timedelta(seconds=20)
    check("local", "the time limit is reached", tell(client, job.id, injected_at, names=NAMES))


def test_the_machine_loses_its_power(tmp_path: Path) -> None:
    """Service and jobs are killed together. The next boot has another id."""
    with ThrowawayService(tmp_path / "runs") as service, Client(service.url) as client:
        job = trains(client, training())
        injected_at = now()
        service.kill()
        kill_all(service)
        for record in (service.root / job.id).glob("attempts/*/replica-*/*/agent.json"):
            document = json.loads(record.read_text())
            document["process"]["boot_id"] = "another boot"
            record.write_text(json.dumps(document))
        service.start()
        with Client(service.url) as again:
            goes_on(again, job.id, injected_at)
            check("local", "a node loses its power", tell(again, job.id, injected_at, names=NAMES))


def test_the_disk_is_full(tmp_path: Path) -> None:
    """The service's database is on the same disk."""
    with (
        mount_small_disk(tmp_path / "disk") as disk,
        ThrowawayService(disk / "runs", log_folder=tmp_path) as service,
        Client(service.url) as client,
    ):
        job = trains(client, training(snapshot=SAVES))
        injected_at = now()
        fill_disk(client, job.id, disk)
        names = {**NAMES, str(disk / "runs"): "RUNS", job.id: "train"}
        check("local", "the disk is full", tell(client, job.id, injected_at, names=names))
        end(client, job.id)
