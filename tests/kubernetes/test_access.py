"""Address and credentials of the API server, from kubeconfig files and from inside a pod."""

from __future__ import annotations

import base64
import json
import os
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from orchestrator.backends.kubernetes.credentials import Exec, Token, TokenFile
from orchestrator.backends.kubernetes.kubeconfig import load_access
from orchestrator.domain.errors import BackendUnavailable, ConfigurationError


def write(path: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **top: Any) -> Path:
    document = {
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": "https://lab:6443/", **(cluster or {})}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": "training"}}],
        **top,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def bearers(auth: httpx.Auth, *statuses: int) -> list[str]:
    """Return the tokens that are sent to a server with these answers."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["Authorization"])
        return httpx.Response(statuses[len(sent) - 1])

    with httpx.Client(transport=httpx.MockTransport(answer), auth=auth) as client:
        client.get("https://lab")
    return sent


def test_the_current_context_has_server_namespace_and_token(tmp_path: Path) -> None:
    access = load_access(write(tmp_path / "config", user={"token": "t0ken"}), None)
    assert (access.server, access.namespace) == ("https://lab:6443", "training")
    assert isinstance(access.auth, Token)
    assert bearers(access.auth, 200) == ["Bearer t0ken"]


def test_a_context_is_chosen_by_name_and_an_unknown_one_is_an_error_with_the_known_ones(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "config")
    assert load_access(path, "lab").server == "https://lab:6443"
    with pytest.raises(ConfigurationError, match="no context gke; known: lab"):
        load_access(path, "gke")


def test_the_first_of_several_files_with_a_value_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "first", contexts=[], users=[], clusters=[])
    second = write(tmp_path / "second", **{"current-context": "other"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (first, tmp_path / "missing", second))))
    assert load_access(None, None).server == "https://lab:6443"


@pytest.mark.parametrize("name", ["kubernetes.example", None])
def test_tls_server_name_is_checked_instead_of_the_address(tmp_path: Path, name: str | None) -> None:
    access = load_access(write(tmp_path / "config", cluster={"tls-server-name": name} if name else {}), None)
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200)

    with access.connect(timeout_s=5, transport=httpx.MockTransport(answer)) as client:
        client.get("/version")
    assert (str(asked[0].url), asked[0].extensions.get("sni_hostname")) == ("https://lab:6443/version", name)


def test_the_variable_kubeconfig_wins_over_a_pod_s_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.kubeconfig._ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("of the pod")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "config")))
    assert load_access(None, None).server == "https://lab:6443"


def test_an_unknown_kind_of_proxy_is_an_error(tmp_path: Path) -> None:
    access = load_access(write(tmp_path / "config", cluster={"proxy-url": "gopher://lab:70"}), None)
    with pytest.raises(ConfigurationError, match="proxy-url"):
        access.connect(timeout_s=5)


def test_a_server_without_a_scheme_uses_tls_and_a_missing_user_is_an_error(tmp_path: Path) -> None:
    assert load_access(write(tmp_path / "a", cluster={"server": "lab:6443"}), None).server == "https://lab:6443"
    with pytest.raises(ConfigurationError, match="user 'me'"):
        load_access(write(tmp_path / "b", users=[]), None)


def test_a_missing_kubeconfig_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="none"):
        load_access(None, None)


def test_an_invalid_certificate_is_an_error_without_its_content(tmp_path: Path) -> None:
    wrong = base64.b64encode(b"no certificate").decode()
    with pytest.raises(ConfigurationError, match="certificate") as raised:
        load_access(write(tmp_path / "config", cluster={"certificate-authority-data": wrong}), None)
    assert "no certificate" not in str(raised.value)


def test_certificates_are_verified_unless_the_kubeconfig_says_otherwise(tmp_path: Path) -> None:
    trusting = load_access(write(tmp_path / "a", cluster={"insecure-skip-tls-verify": True}), None).verify
    careful = load_access(write(tmp_path / "b"), None).verify
    assert isinstance(trusting, ssl.SSLContext)
    assert isinstance(careful, ssl.SSLContext)
    assert (trusting.verify_mode, careful.verify_mode) == (ssl.CERT_NONE, ssl.CERT_REQUIRED)


def test_a_token_file_is_read_again_after_a_401(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    auth = TokenFile(path)
    assert bearers(auth, 200) == ["Bearer old"]
    path.write_text("new\n")
    assert bearers(auth, 401, 200) == ["Bearer old", "Bearer new"]
    path.unlink()
    with pytest.raises(BackendUnavailable):
        bearers(TokenFile(path), 200)


def test_a_plug_in_s_token_is_cached_until_it_expires(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    program = tmp_path / "plugin"
    status = {"token": "from-plugin", "expirationTimestamp": "2000-01-01T00:00:00Z"}
    answer = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "status": status})
    program.write_text(f"#!/bin/sh\necho \"$1 $KIND $KUBERNETES_EXEC_INFO\" >> {calls}\necho '{answer}'\n")
    program.chmod(0o755)
    given = {"command": "./plugin", "args": ["get-token"], "env": [{"name": "KIND", "value": "test"}]}
    path = write(tmp_path / "config", user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", **given}})
    auth = load_access(path, None).auth
    assert isinstance(auth, Exec)
    assert bearers(auth, 200) == bearers(auth, 200) == ["Bearer from-plugin"]
    calls_made = calls.read_text().splitlines()
    assert len(calls_made) == 2  # an expired token is requested each time
    assert calls_made[0].startswith("get-token test ")
    assert "client.authentication.k8s.io/v1" in calls_made[0]
    program.write_text(program.read_text().replace("2000-", "2999-"))
    assert bearers(auth, 200) == bearers(auth, 200) == ["Bearer from-plugin"]
    assert len(calls.read_text().splitlines()) == 3


def test_a_failing_plug_in_is_named_without_its_output(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text("#!/bin/sh\necho s3cr3t\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="plugin") as raised:
        bearers(Exec({"command": str(program)}, tmp_path), 200)
    assert "s3cr3t" not in str(raised.value)
