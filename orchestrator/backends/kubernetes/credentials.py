"""Authenticate to the API server by a token, or by a program that prints a token or certificate. Thread-safe.

Format: client.authentication.k8s.io/v1 (Kubernetes, "Authenticating", client-go credential plugins). No error message
contains a secret that is read here.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from orchestrator.domain.errors import BackendUnavailable

_EXEC_S = 60.0  # an exec plugin may have to ask an identity provider
_REREAD_S = 60.0  # service account tokens are rotated well before they expire
_RENEW_EARLY_S = 30.0


def load_certificate(verify: ssl.SSLContext, certificate: bytes | None, key: bytes | None) -> None:
    """Use the certificate for new connections."""
    if certificate is None or key is None:
        return
    with tempfile.TemporaryDirectory() as private:  # ssl reads only files; the folder is private to this user
        path = Path(private) / "both.pem"
        path.write_bytes(certificate + b"\n" + key)
        verify.load_cert_chain(path)


class Token(httpx.Auth):
    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


class _Renewed(httpx.Auth, ABC):
    """A token that is fetched again when it is about to expire, or when the server rejects it.

    An empty token is not sent; a certificate then identifies the service.
    """

    def __init__(self) -> None:
        self._token, self._until, self._number = "", float("-inf"), 0
        self._lock = threading.Lock()

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        number = self._add_token(request, refused=None)
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._add_token(request, refused=number)
            request.headers["Connection"] = "close"  # an open connection keeps its old certificate
            yield request

    def _add_token(self, request: httpx.Request, *, refused: int | None) -> int:
        """Add the token to the request. `refused` is the number of a token that the server rejected."""
        with self._lock:
            now = datetime.now(UTC).timestamp()
            if now >= self._until or refused == self._number:
                self._token, self._until = self._fetch(now)
                self._number += 1
            if self._token:
                request.headers["Authorization"] = f"Bearer {self._token}"
            return self._number

    @abstractmethod
    def _fetch(self, now: float) -> tuple[str, float]:
        """Return the token and when to fetch it again, in epoch seconds. Raises BackendUnavailable."""


class TokenFile(_Renewed):
    """A token from a file that another program renews."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _fetch(self, now: float) -> tuple[str, float]:
        try:
            return self._path.read_text().strip(), now + _REREAD_S
        except OSError as error:
            raise BackendUnavailable(f"cannot read the token for the API server: {error}") from error


class Exec(_Renewed):
    """A program that prints a token, as managed clusters use, or a certificate, which is loaded into `verify`.

    `cluster` is the cluster information that the program receives.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        folder: Path,
        *,
        verify: ssl.SSLContext | None = None,
        cluster: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._given, self._folder, self._verify, self._cluster = given, folder, verify, cluster

    def _fetch(self, now: float) -> tuple[str, float]:
        program = str(self._given["command"])
        if "/" in program:
            program = str(self._folder / program)
        try:
            status = json.loads(self._run(program))["status"]
            token = str(status.get("token") or "")
            if not token or status.get("clientCertificateData"):
                self._load_certificate(status)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError) as error:
            # The error's own text may contain the program's output, and so a token.
            words = f"{program} printed no token or certificate for the API server"
            raise BackendUnavailable(f"{words}: {type(error).__name__}") from None
        ends = status.get("expirationTimestamp")
        until = (
            datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() - _RENEW_EARLY_S if ends else float("inf")
        )
        return token, until

    def _run(self, program: str) -> bytes:
        version = str(self._given.get("apiVersion", "client.authentication.k8s.io/v1"))
        info = {"interactive": False} | ({} if self._cluster is None else {"cluster": dict(self._cluster)})
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
        extra = {each["name"]: each["value"] for each in self._given.get("env") or ()}
        done = subprocess.run(
            [program, *map(str, self._given.get("args") or ())],
            env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked), **extra},
            stdin=subprocess.DEVNULL,  # nobody can answer a prompt
            capture_output=True,
            timeout=_EXEC_S,
            check=True,
        )
        return done.stdout

    def _load_certificate(self, status: Mapping[str, Any]) -> None:
        if self._verify is None:
            raise ValueError("no token")
        certificate, key = (str(status[name]).encode() for name in ("clientCertificateData", "clientKeyData"))
        load_certificate(self._verify, certificate, key)
