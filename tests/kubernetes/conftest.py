"""A fake cluster for each test. All calls must be covered by the documented rights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import ship
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.kubeconfig import Access
from orchestrator.backends.kubernetes.rights import RIGHTS
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.backends.kubernetes.watcher import WatchTimes
from tests.kubernetes.fake_api import FakeApi, Store
from tests.kubernetes.fake_cluster import FakeCluster


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    store = Store()
    api, cluster = FakeApi(store), FakeCluster(store, tmp_path)
    api.cluster = cluster
    api.start()
    cluster.start()
    yield api
    cluster.close()
    api.close()
    granted = {(right.api_group, right.resource, verb) for right in RIGHTS for verb in right.verbs}
    assert set(store.calls) <= granted


@pytest.fixture
def own(api: FakeApi, tmp_path: Path) -> KubernetesSite:
    return KubernetesSite(
        namespace=api.store.namespace,
        image="trainer:1",
        root=tmp_path,
        service_root=tmp_path,
        shared=True,
        agent_dir=tmp_path / ship.agent_folder(ship.find_package()),
        python=sys.executable,
        grace_s=3,
        settle_s=0.5,
    )


@pytest.fixture
def client(api: FakeApi) -> Iterator[KubernetesClient]:
    access = Access(server=api.url, namespace=None, verify=False, auth=None)
    client = KubernetesClient(access, namespace=api.store.namespace, timeout_s=5)
    yield client
    client.close()


@pytest.fixture
def backend(own: KubernetesSite, client: KubernetesClient) -> Iterator[KubernetesBackend]:
    backend = build(own, client)
    yield backend
    backend.close()


@pytest.fixture
def apart(own: KubernetesSite, client: KubernetesClient, tmp_path: Path) -> Iterator[KubernetesBackend]:
    """A backend whose pods share no files with the service and whose image does not have the package."""
    site = replace(own, root=tmp_path / "pods", service_root=tmp_path / "service", shared=False, agent_dir=None)
    backend = build(replace(site, agent_map="elastic-orchestrator-agent-0f"), client)
    yield backend
    backend.close()


def build(own: KubernetesSite, client: KubernetesClient, **given: Any) -> KubernetesBackend:
    package = ship.find_package()
    return KubernetesBackend(
        own, client, package=package, times=WatchTimes(watch_s=5, silent_s=20), first_answer_s=5, **given
    )
