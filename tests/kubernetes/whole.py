"""A whole service with default times on a fake cluster whose containers are processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.dev.network import Network
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.wire.job_views import JobView
from tests.jobs import python_job, until
from tests.kubernetes.fake_api import FakeApi, Store
from tests.kubernetes.fake_cluster import FakeCluster
from tests.kubernetes.pretend import kubeconfig

_CLUSTER = """
[clusters.live]
backend = "kubernetes"
namespace = "training"
image = "trainer:1"
python = "{python}"
host_path = "/srv/shared"
service_root = "{runs}"
"""
_SCRIPT = "import os, time; print('I am rank', os.environ['RANK'], flush=True); time.sleep(600)"


@dataclass
class World:
    cluster: FakeCluster
    service: ThrowawayService
    client: Client

    def running(self, *, pods: int) -> tuple[str, list[str]]:
        """Start a job. Returns its id once its workers run, and the names of its pods."""
        topology = {"nodes": str(pods), "workers_per_node": 1}
        spec = python_job(_SCRIPT, cluster="live", topology=topology)
        job = self.client.submit(spec).id
        self.until(job, lambda seen: seen.state == "RUNNING")
        names = [str(pod["metadata"]["name"]) for pod in self.cluster.store.all("pods")]
        return job, sorted(name for name in names if name.startswith(job))

    def node_of(self, pod: str) -> str:
        found = self.cluster.store.get("pods", pod)
        assert found is not None
        return str(found["spec"]["nodeName"])

    def until(self, job: str, holds: Callable[[JobView], bool], *, timeout_s: float = 120) -> JobView:
        return until(self.client, job, holds, timeout_s=timeout_s)


@contextmanager
def whole(folder: Path, network: Network | None = None) -> Iterator[World]:
    """Run a service and a cluster with all files in `folder`. `network` has three machines, one per node."""
    store = Store()
    nodes = ("node-1", "node-2", "node-3")
    api, cluster = FakeApi(store), FakeCluster(store, folder, nodes=nodes, network=network)
    api.start()
    cluster.start()
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(api.url)))
    config = _CLUSTER.format(python=sys.executable, runs=folder / "runs")
    (folder / "orchestrator.toml").write_text(config)
    settings = {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "ORCHESTRATOR_CONFIG": str(folder / "orchestrator.toml"),
    }
    with ThrowawayService(folder / "service", settings) as service, Client(service.url) as client:
        yield World(cluster, service, client)
    cluster.close()
    api.close()
