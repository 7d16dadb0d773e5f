"""Find the API server and the credentials, from kubeconfig files or from this pod's service account.

Format: "Organizing Cluster Access Using kubeconfig Files" (Kubernetes). No error message contains a secret that is read
here.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from orchestrator.backends.kubernetes.credentials import Exec, Token, TokenFile, load_certificate
from orchestrator.domain.errors import ConfigurationError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Access:
    """An API server and its credentials. `verify` and `auth` are httpx's arguments."""

    server: str
    namespace: str | None
    verify: ssl.SSLContext | bool
    auth: httpx.Auth | None
    proxy: str | None = None
    server_name: str | None = None  # the name in its certificate, if it differs from the address

    def connect(self, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> httpx.Client:
        """Create the client without a request. Ignores the process's proxy settings. Raises ConfigurationError."""

        def name_server(request: httpx.Request) -> None:
            if self.server_name is not None:
                request.extensions = {**request.extensions, "sni_hostname": self.server_name}

        try:
            return httpx.Client(
                base_url=self.server,
                verify=self.verify,
                auth=self.auth,
                proxy=self.proxy,
                timeout=timeout_s,
                transport=transport,
                trust_env=False,
                headers={"User-Agent": "elastic-orchestrator", "Accept": "application/json"},
                event_hooks={"request": [name_server]},
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:  # an unknown scheme, or a missing extra
            raise ConfigurationError(f"kubeconfig: cannot use server or proxy-url: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Context:
    """One context of the kubeconfig files. Paths in a section are relative to its file's folder."""

    cluster_name: str
    cluster: Mapping[str, Any]
    cluster_folder: Path
    user: Mapping[str, Any]
    user_folder: Path
    namespace: str | None


def load_access(kubeconfig: Path | None, context: str | None) -> Access:
    """Load a kubeconfig's named context. If neither is named, use this pod's service account, if any.

    Raises ConfigurationError.
    """
    inside, named = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBECONFIG")
    if kubeconfig is None and context is None and not named and inside and (_ACCOUNT / "token").exists():
        return _in_cluster(inside, os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return _access(find_context([kubeconfig] if kubeconfig is not None else kubeconfigs(), context))


def kubeconfigs() -> list[Path]:
    """Return the files that kubectl would read."""
    named = os.environ.get("KUBECONFIG")
    return [Path(each) for each in named.split(os.pathsep) if each] if named else [Path.home() / ".kube" / "config"]


def _in_cluster(host: str, port: str) -> Access:
    bracketed = f"[{host}]" if ":" in host else host
    authority = _ACCOUNT / "ca.crt"
    namespace = _ACCOUNT / "namespace"
    return Access(
        server=f"https://{bracketed}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else None,
        verify=_trust(cafile=str(authority)),
        auth=TokenFile(_ACCOUNT / "token"),
    )


def find_context(paths: Sequence[Path], context: str | None) -> Context:
    """Find the named or else the current context in the merged files. Raises ConfigurationError."""
    clusters: dict[str, tuple[Mapping[str, Any], Path]] = {}
    users: dict[str, tuple[Mapping[str, Any], Path]] = {}
    contexts: dict[str, Mapping[str, Any]] = {}
    current: str | None = None
    for path in paths:
        document = _read(path)
        for name, value in _named(document, "clusters", "cluster"):
            clusters.setdefault(name, (value, path.parent))  # the first of a name wins
        for name, value in _named(document, "users", "user"):
            users.setdefault(name, (value, path.parent))
        for name, value in _named(document, "contexts", "context"):
            contexts.setdefault(name, value)
        current = current or document.get("current-context")
    where = ", ".join(map(str, paths))
    chosen = contexts.get(context or current or "")
    if chosen is None:
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigurationError(f"{where}: no context {context or current or '(none is current)'}; known: {known}")
    if chosen.get("cluster") not in clusters:
        raise ConfigurationError(f"{where}: context names cluster {chosen.get('cluster')!r}, which is not defined")
    if chosen.get("user") and chosen["user"] not in users:
        raise ConfigurationError(f"{where}: context names user {chosen['user']!r}, which is not defined")
    cluster, cluster_folder = clusters[chosen["cluster"]]
    user, user_folder = users.get(chosen.get("user", ""), ({}, Path()))
    return Context(
        cluster_name=chosen["cluster"],
        cluster=cluster,
        cluster_folder=cluster_folder,
        user=user,
        user_folder=user_folder,
        namespace=chosen.get("namespace"),
    )


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read kubeconfig {path}: {type(error).__name__}") from None
    return document if isinstance(document, Mapping) else {}


def _named(document: Mapping[str, Any], many: str, one: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(each["name"], each.get(one) or {}) for each in document.get(many) or () if "name" in each]


def _access(context: Context) -> Access:
    cluster, user, user_folder = context.cluster, context.user, context.user_folder
    authority = _content(cluster, "certificate-authority", context.cluster_folder)
    try:
        verify = _trust(cadata=None if authority is None else authority.decode())
        if cluster.get("insecure-skip-tls-verify"):
            verify.check_hostname, verify.verify_mode = False, ssl.CERT_NONE
        load_certificate(verify, *(_content(user, name, user_folder) for name in ("client-certificate", "client-key")))
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigurationError(f"kubeconfig: cannot use a certificate: {error}") from None
    server = str(cluster.get("server", "")).rstrip("/")
    return Access(
        server=server if "://" in server else f"https://{server}",
        namespace=context.namespace,
        verify=verify,
        auth=_auth(context, verify),
        proxy=cluster.get("proxy-url"),
        server_name=cluster.get("tls-server-name"),
    )


def _trust(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Trust what kubectl trusts. Since 3.13 Python rejects certificates without key identifiers, which are common."""
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _content(section: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    """Return the content of the file, or of the section's own data field. Raises ConfigurationError."""
    if section.get(f"{name}-data"):
        return b64decode(str(section[f"{name}-data"]))
    if not section.get(name):
        return None
    try:
        return (folder / str(section[name])).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"kubeconfig: cannot read {name}: {error}") from None


def _auth(context: Context, verify: ssl.SSLContext) -> httpx.Auth | None:
    user = context.user
    if user.get("tokenFile"):
        return TokenFile(context.user_folder / user["tokenFile"])
    if user.get("token"):
        return Token(str(user["token"]))
    if user.get("username"):
        return httpx.BasicAuth(str(user["username"]), str(user.get("password", "")))
    if not user.get("exec"):
        return None
    info = _cluster_info(context) if user["exec"].get("provideClusterInfo") else None
    return Exec(user["exec"], context.user_folder, verify=verify, cluster=info)


def _cluster_info(context: Context) -> Mapping[str, Any]:
    """Build the cluster information for a plugin that requests it (client.authentication.k8s.io/v1, Cluster)."""
    cluster = context.cluster
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    info = {name: cluster[name] for name in names if cluster.get(name)}
    authority = _content(cluster, "certificate-authority", context.cluster_folder)
    info |= {} if authority is None else {"certificate-authority-data": b64encode(authority).decode()}
    extensions = {each.get("name"): each.get("extension") for each in cluster.get("extensions") or ()}
    return {**info, "config": extensions.get("client.authentication.k8s.io/exec")}
