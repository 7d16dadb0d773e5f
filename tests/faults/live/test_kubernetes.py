"""The faults of jobs on Kubernetes at default settings: the rows of docs/failures.md.

A whole service with real agents on a fake cluster, whose containers are processes of this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.network import Network, NoNamespaces
from deploy.dev.service import Marked, processes_of
from tests.conftest import mount_small_disk
from tests.faults.cells import check, tell
from tests.faults.training_jobs import SAVES, end, fill_disk, goes_on, now, over, training, trains, wait_s
from tests.kubernetes.whole import World, whole

pytestmark = pytest.mark.timeout(900)

CLUSTER = "kubernetes"
HEALED_AFTER_S = 60.0
LIMIT_S = 40


@dataclass(frozen=True)
class FaultyJob:
    """A training job of two pods."""

    world: World
    job: str
    pods: tuple[str, str]

    @property
    def names(self) -> dict[str, str]:
        return {self.job: "train", **{pod: f"train-{index}" for index, pod in enumerate(self.pods)}}

    def processes(self) -> list[Marked]:
        return [each for each in processes_of(self.world.cluster.folder / "runs") if each.job_id == self.job]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with whole(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def wired_world(tmp_path: Path) -> Iterator[World]:
    """A world whose nodes have their own network. The shared folder does not use it."""
    if shutil.which("ip") is None or shutil.which("iptables") is None:
        pytest.skip("iproute2 or iptables is not installed")
    try:
        with Network(3) as network, whole(tmp_path, network) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(str(error))


def begin(world: World, **fields: Any) -> FaultyJob:
    job = trains(world.client, training(cluster="live", nodes=2, **fields)).id
    pods = sorted(name for pod in world.cluster.store.all("pods") if (name := pod["metadata"]["name"]).startswith(job))
    first, second = pods
    return FaultyJob(world, job, (first, second))


def kill_worker(faulty: FaultyJob) -> None:
    (worker,) = (each for each in faulty.processes() if each.local_rank is not None and each.replica == 1)
    os.kill(worker.pid, signal.SIGKILL)


def stop_worker(faulty: FaultyJob) -> None:
    (worker,) = (each for each in faulty.processes() if each.local_rank is not None and each.replica == 1)
    os.kill(worker.pid, signal.SIGSTOP)


def kill_agent(faulty: FaultyJob) -> None:
    """Kill the agent. The container's first process, which started it, continues."""
    first = {each.process.pid for each in faulty.world.cluster.running.values()}
    agents = [each for each in faulty.processes() if each.is_agent and each.replica == 1 and each.pid not in first]
    assert agents
    for agent in agents:
        os.kill(agent.pid, signal.SIGKILL)


def evict(faulty: FaultyJob) -> None:
    faulty.world.cluster.evict(faulty.pods[1])


def preempt(faulty: FaultyJob) -> None:
    faulty.world.cluster.preempt(faulty.pods[1], by="2e1419f9")


def delete_job(faulty: FaultyJob) -> None:
    store = faulty.world.cluster.store
    (found,) = (each for each in store.all("jobs") if each["metadata"]["name"].startswith(faulty.job))
    store.on_delete("jobs", found, {"propagationPolicy": "Background"})


def run_out_of_memory(faulty: FaultyJob) -> None:
    faulty.world.cluster.run_out_of_memory(faulty.pods[1])


def drain(faulty: FaultyJob) -> None:
    faulty.world.cluster.drain(faulty.world.node_of(faulty.pods[1]))


def cut_power(replica: int) -> Callable[[FaultyJob], None]:
    return lambda faulty: faulty.world.cluster.cut_power(faulty.world.node_of(faulty.pods[replica]))


def observe(faulty: FaultyJob, fault: str, inject: Callable[[FaultyJob], None]) -> None:
    injected_at, client = now(), faulty.world.client
    inject(faulty)
    goes_on(client, faulty.job, injected_at)
    check(CLUSTER, fault, tell(client, faulty.job, injected_at, names=faulty.names))
    end(client, faulty.job)


@pytest.mark.parametrize(
    ("fault", "inject"),
    [
        ("a worker is killed", kill_worker),
        ("a worker hangs", stop_worker),
        ("an agent is killed", kill_agent),
        ("a replica is evicted", evict),
        ("the job is preempted", preempt),
        ("it is deleted by hand", delete_job),
        ("a worker runs out of memory", run_out_of_memory),
        ("a node is drained", drain),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault(world: World, fault: str, inject: Callable[[FaultyJob], None]) -> None:
    observe(begin(world), fault, inject)


@pytest.mark.parametrize(
    ("fault", "replica"), [("a node loses its power", 1), ("the node of the store is lost", 0)], ids=["other", "store"]
)
def test_a_node_loses_its_power(wired_world: World, fault: str, replica: int) -> None:
    observe(begin(wired_world), fault, cut_power(replica))


def test_the_network_of_a_node_is_cut_in_one_direction(wired_world: World) -> None:
    """The node receives packets, but what it sends is lost."""
    cluster = wired_world.cluster
    faulty = begin(wired_world)
    node = wired_world.node_of(faulty.pods[1])
    observe(faulty, "the network is cut in one direction", lambda _: cluster.cut_off(node, one_way=True))


def test_the_network_of_a_node_is_cut_and_healed(wired_world: World) -> None:
    """When the node returns, its kubelet ends its old pods. The new attempt continues."""
    client, cluster = wired_world.client, wired_world.cluster
    faulty = begin(wired_world)
    node, injected_at = wired_world.node_of(faulty.pods[1]), now()
    cluster.cut_off(node)
    wait_s(HEALED_AFTER_S)
    cluster.reconnect(node)
    over(client, faulty.job, lambda _: faulty.pods[1] not in cluster.running)
    goes_on(client, faulty.job, injected_at)
    check(
        CLUSTER, "the network is cut, and healed after 60 s", tell(client, faulty.job, injected_at, names=faulty.names)
    )
    end(client, faulty.job)


def test_the_disk_is_full(tmp_path: Path) -> None:
    """The disk of the jobs' folders is full. The service uses another one."""
    with mount_small_disk(tmp_path / "runs") as disk, whole(tmp_path) as world:
        faulty = begin(world, snapshot=SAVES)
        injected_at = now()
        fill_disk(world.client, faulty.job, disk)
        names = {**faulty.names, str(disk): "RUNS"}
        check(CLUSTER, "the disk is full", tell(world.client, faulty.job, injected_at, names=names))
        end(world.client, faulty.job)


def test_the_time_limit_is_reached(world: World) -> None:
    """Kubernetes counts the limit from the start of the Job."""
    faulty = begin(world, placement={"time_limit_s": LIMIT_S})
    over(world.client, faulty.job, lambda seen: seen.attempts == 2 or seen.ended)
    first, *_ = world.client.attempts(faulty.job)
    injected_at = first.created_at + timedelta(seconds=LIMIT_S)
    goes_on(world.client, faulty.job, injected_at)
    check(CLUSTER, "the time limit is reached", tell(world.client, faulty.job, injected_at, names=faulty.names))
    end(world.client, faulty.job)
