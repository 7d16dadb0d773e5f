"""Helpers of the live tests: the relay in front of the API server, addresses, and the service's configuration."""

from __future__ import annotations

import ipaddress
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import tomllib
import yaml

from orchestrator.backends.kubernetes.kubeconfig import load_access
from orchestrator.cluster_settings import KubernetesClusterSettings
from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.live.lab import configuration, kubeconfig_through, overlay_of, render_toml, training
from tests.kubernetes.live.options import Options
from tests.kubernetes.live.relay import Relay, address_towards
from tests.kubernetes.tls_server import Cluster, serve, sign, write_kubeconfig

CHOSEN = Options({"context": ""})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serve(tmp_path) as cluster:
        yield cluster


@contextmanager
def behind(relay: Relay, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """Connect through the relay with a kubeconfig, as the service does."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig_through(relay.port, CHOSEN, folder))
    with load_access(None, None).connect(timeout_s=5) as client:
        yield client


def write(folder: Path, cluster: Cluster, **of_cluster: str) -> str:
    certificate, key = (b64encode(each).decode() for each in sign("jane", cluster.authority).pems())
    user = {"client-certificate-data": certificate, "client-key-data": key}
    return str(write_kubeconfig(folder, cluster, user, **of_cluster))


def test_client_certificates_work_through_the_relay_and_a_shut_relay_refuses(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    monkeypatch.setenv("KUBECONFIG", f"{empty}{os.pathsep}{write(tmp_path, cluster)}")
    (tmp_path / "through").mkdir()
    with closing(Relay("127.0.0.1", cluster.port)) as relay, behind(relay, tmp_path / "through", monkeypatch) as client:
        assert client.get("/version").json()["gitVersion"] == "v1.36.2"
        relay.shut()
        with pytest.raises(httpx.TransportError):
            client.get("/version")
        relay.open()
        assert client.get("/version").json()["gitVersion"] == "v1.36.2"
    assert set(cluster.callers) == {"jane"}


def test_the_relay_uses_the_kubeconfig_s_proxy(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Relay("127.0.0.1", cluster.port)) as theirs:
        proxied = write(tmp_path, cluster, **{"proxy-url": f"http://me:secret@127.0.0.1:{theirs.port}"})
        monkeypatch.setenv("KUBECONFIG", proxied)
        (tmp_path / "through").mkdir()
        with (
            closing(Relay("127.0.0.1", theirs.port, to_proxy=True)) as ours,
            behind(ours, tmp_path / "through", monkeypatch) as client,
        ):
            assert client.get("/version").json()["gitVersion"] == "v1.36.2"
            written = yaml.safe_load((tmp_path / "through" / "kubeconfig").read_text())
            assert written["clusters"][0]["cluster"]["proxy-url"] == f"http://me:secret@127.0.0.1:{ours.port}"
            theirs.shut()
            with pytest.raises(httpx.TransportError):
                client.get("/version")


def test_the_relay_works_without_tls(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "current-context": "pretend",
        "clusters": [{"name": "pretend", "cluster": {"server": api.url}}],
        "contexts": [{"name": "pretend", "context": {"cluster": "pretend"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "through").mkdir()
    with (
        closing(Relay("127.0.0.1", httpx.URL(api.url).port or 0)) as relay,
        behind(relay, tmp_path / "through", monkeypatch) as client,
    ):
        assert client.get("/version").json()["gitVersion"] == "v1.36.2"


def test_the_address_for_pods_is_not_loopback() -> None:
    found = address_towards("127.0.0.1", 6443)
    assert found is None or not ipaddress.ip_address(found).is_loopback


def test_an_overlay_becomes_toml_with_its_deletions() -> None:
    text = """
        spec: {template: {spec: {securityContext: {seccompProfile: null}, containers: [{name: agent, tty: true}]}}}
        """
    rendered = tomllib.loads(f"overlay = {render_toml(overlay_of(text))}")["overlay"]["spec"]["template"]["spec"]
    assert rendered["securityContext"] == {"seccompProfile": {"$patch": "delete"}}
    assert rendered["containers"] == [{"name": "agent", "tty": True, "imagePullPolicy": "IfNotPresent"}]
    (agent,) = overlay_of("")["spec"]["template"]["spec"]["containers"]
    assert agent == {"name": "agent", "imagePullPolicy": "IfNotPresent"}


def test_live_tests_use_the_default_times() -> None:
    given = {"storage-class": "", "claim": "runs", "host-path": "", "service-root": "", "overlay": "", "run-as": ""}
    options = Options({**given, "context": "", "image": "trainer:1", "python": "python3"})
    rendered = tomllib.loads(configuration(options, "tests"))["clusters"]["live"]
    usual = KubernetesClusterSettings(backend="kubernetes")
    set_here = KubernetesClusterSettings.model_validate(rendered)
    times = [name for name in KubernetesClusterSettings.model_fields if name.endswith("_s")]
    assert len(times) > 4
    assert {name: getattr(set_here, name) for name in times} == {name: getattr(usual, name) for name in times}
    assert "supervise" not in training()
