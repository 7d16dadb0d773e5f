"""Certificates of server and client, with a TLS server like an API server."""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.kubeconfig import load_access
from orchestrator.domain.errors import BackendUnavailable
from tests.kubernetes.tls_server import Cluster, Signed, serve, sign, write_kubeconfig


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serve(tmp_path) as cluster:
        yield cluster


@contextmanager
def connect(cluster: Cluster, folder: Path, user: dict[str, Any], **of_cluster: Any) -> Iterator[KubernetesClient]:
    access = load_access(write_kubeconfig(folder, cluster, user, **of_cluster), None)
    with closing(KubernetesClient(access, namespace="training", timeout_s=5)) as client:
        yield client


def plug_in(folder: Path, signed: Signed) -> dict[str, Any]:
    """Write a credential plugin that prints this certificate and its key, and records its input."""
    certificate, key = (each.decode() for each in signed.pems())
    status = {"clientCertificateData": certificate, "clientKeyData": key}
    (folder / "answer").write_text(json.dumps({"kind": "ExecCredential", "status": status}))
    program = folder / "plugin"
    program.write_text(
        f'#!/bin/sh\ncat >/dev/null\necho "$KUBERNETES_EXEC_INFO" >> {folder}/told\ncat {folder}/answer\n'
    )
    program.chmod(0o755)
    return {"exec": {"command": "./plugin", "provideClusterInfo": True}}


def test_certificates_without_key_identifiers_are_trusted_as_in_kubectl(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def strict(**given: Any) -> ssl.SSLContext:
        """The default since Python 3.13."""
        context = usual(**given)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    certificate, key = (b64encode(each).decode() for each in sign("jane", cluster.authority).pems())
    with connect(cluster, tmp_path, {"client-certificate-data": certificate, "client-key-data": key}) as client:
        assert client.version()["gitVersion"] == "v1.36.2"
    assert cluster.callers == ["jane"]


def test_a_server_of_another_authority_is_not_trusted(cluster: Cluster, tmp_path: Path) -> None:
    other = b64encode(sign("kubernetes").pems()[0]).decode()
    with (
        connect(cluster, tmp_path, {"token": "t0ken"}, **{"certificate-authority-data": other}) as client,
        pytest.raises(BackendUnavailable, match="certificate verify failed"),
    ):
        client.version()
    assert cluster.callers == []


def test_a_plug_in_s_certificate_is_used_and_renewed_after_a_401(cluster: Cluster, tmp_path: Path) -> None:
    with connect(cluster, tmp_path, plug_in(tmp_path, sign("jane", cluster.authority))) as client:
        assert client.version()["gitVersion"] == "v1.36.2"
    with connect(cluster, tmp_path, plug_in(tmp_path, sign("expired", cluster.authority))) as client:
        with pytest.raises(BackendUnavailable, match="credentials"):
            client.version()
        plug_in(tmp_path, sign("jane", cluster.authority))
        with pytest.raises(BackendUnavailable, match="credentials"):
            client.version()  # this 401 discards the old certificate
        assert client.version()["gitVersion"] == "v1.36.2"
    assert cluster.callers[-1] == "jane"
    spec = json.loads((tmp_path / "told").read_text().splitlines()[0])["spec"]
    assert spec["interactive"] is False
    assert spec["cluster"]["server"] == f"https://127.0.0.1:{cluster.port}"
    assert spec["cluster"]["certificate-authority-data"]


def test_a_plug_in_without_token_or_certificate_is_named(cluster: Cluster, tmp_path: Path) -> None:
    user = plug_in(tmp_path, sign("jane", cluster.authority))
    (tmp_path / "answer").write_text('{"status": {"clientCertificateData": "s3cr3t"}}')
    with (
        connect(cluster, tmp_path, user) as client,
        pytest.raises(BackendUnavailable, match="plugin printed no token or certificate") as raised,
    ):
        client.version()
    assert "s3cr3t" not in str(raised.value)
