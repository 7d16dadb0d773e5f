"""`doctor` on Kubernetes."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.backends.kubernetes.checkup import examine
from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.probe import ProbeOptions
from orchestrator.backends.kubernetes.rights import RIGHTS
from orchestrator.backends.kubernetes.site import KubernetesSite
from tests.kubernetes.fake_api import FakeApi, recorded


@pytest.fixture
def look(api: FakeApi) -> ProbeOptions:
    """Both pods run on this machine, so the port must be free here."""
    with closing(socket.create_server(("", 0))) as free:
        port = free.getsockname()[1]
    return ProbeOptions(url=f"{api.url}/version", modules=("json",), port=port, patience_s=60, meet_s=60)


def test_a_healthy_cluster_passes_and_nothing_is_left_there(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite, look: ProbeOptions
) -> None:
    words = list(examine(client, replace(own, user=os.geteuid(), claim="runs"), look))
    assert [word for word in words if not word.good] == []
    sentences = {word.check: word.sentence for word in words}
    assert set(sentences) > {right.resource for right in RIGHTS}
    assert "1.36" in sentences["api server"]
    assert "2 pods ran on node-1; the network between two nodes was not tested" in sentences["pods"]
    assert "share" in sentences["run directory"]
    assert look.url is not None
    assert look.url in sentences["reports"]
    assert list(own.service_root.glob(".doctor*")) == []
    assert api.store.all("jobs") == []


@pytest.mark.parametrize("user", [os.geteuid() + 1, None])
def test_another_user_id_for_pods_with_shared_files_is_a_warning(
    client: KubernetesClient, own: KubernetesSite, look: ProbeOptions, user: int | None
) -> None:
    words = {word.check: word for word in examine(client, replace(own, user=user, image=None), look)}
    assert words["users"].good is None
    assert f"the service as {os.geteuid()}" in words["users"].sentence
    apart = replace(own, user=user, image=None, shared=False)
    assert "users" not in {word.check for word in examine(client, apart, look)}


def test_a_missing_right_is_named_with_its_purpose_and_ends_the_checks(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite, look: ProbeOptions
) -> None:
    api.store.denied |= {("jobs", "patch"), ("nodes", "watch"), ("events", "list")}
    words = {word.check: word for word in examine(client, own, look)}
    assert words["jobs"].good is False
    assert "no right to patch jobs: an attempt is a Job" in words["jobs"].sentence
    assert (words["nodes"].good, words["events"].good) == (None, None)
    assert "dry run" not in words


def test_a_refused_dry_run_and_an_unreachable_server_fail(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite, look: ProbeOptions
) -> None:
    api.store.next_refusal["jobs", "create"] = recorded("quota on jobs exceeded")
    last = list(examine(client, own, look))[-1]
    assert (last.check, last.good, "quota" in last.sentence) == ("dry run", False, True)
    api.close()
    (word,) = examine(client, own, look)
    assert (word.check, word.good) == ("api server", False)
