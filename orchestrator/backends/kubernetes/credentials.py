"""What tells the API server who asks: tokens, and programs that print one or a certificate. Safe in several threads.

Format: client.authentication.k8s.io/v1 (Kubernetes, "Authenticating", client-go credential plugins). What is read here
is in no error's text.
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

_EXEC_S = 60.0  # an exec plug-in may have to ask an identity provider
_REREAD_S = 60.0  # tokens of service accounts are rotated well before their end
_EARLY_S = 30.0


def load_certificate(verify: ssl.SSLContext, certificate: bytes | None, key: bytes | None) -> None:
    """For the connections that are made from now on."""
    if certificate is None or key is None:
        return
    with tempfile.TemporaryDirectory() as private:  # ssl reads files alone; the folder is this user's only
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
    """A token that has an end: fetched again when it is near, and when the server no longer takes it.

    An empty one is not sent: then a certificate tells who asks.
    """

    def __init__(self) -> None:
        self._token, self._until, self._number = "", float("-inf"), 0
        self._lock = threading.Lock()

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        number = self._show(request, refused=None)
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._show(request, refused=number)
            request.headers["Connection"] = "close"  # one that was opened with an older certificate stays with it
            yield request

    def _show(self, request: httpx.Request, *, refused: int | None) -> int:
        """Put the token into the request; `refused`: the number of one that the server did not take."""
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
        """The token, and until when it is used. Raises BackendUnavailable."""


class TokenFile(_Renewed):
    """A file that somebody else keeps fresh."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _fetch(self, now: float) -> tuple[str, float]:
        try:
            return self._path.read_text().strip(), now + _REREAD_S
        except OSError as error:
            raise BackendUnavailable(f"the token of the API server cannot be read: {error}") from error


class Exec(_Renewed):
    """A program that prints a token, as managed clusters use, or a certificate, which `verify` shows from then on.

    `cluster`: what the program is told of it.
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
                self._show_certificate(status)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError) as error:
            # The error's own text may hold what the program printed, which may be a token.
            words = f"{program} gave no token or certificate for the API server"
            raise BackendUnavailable(f"{words}: {type(error).__name__}") from None
        ends = status.get("expirationTimestamp")
        until = datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() - _EARLY_S if ends else float("inf")
        return token, until

    def _run(self, program: str) -> bytes:
        version = str(self._given.get("apiVersion", "client.authentication.k8s.io/v1"))
        info = {"interactive": False} | ({} if self._cluster is None else {"cluster": dict(self._cluster)})
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
        extra = {each["name"]: each["value"] for each in self._given.get("env") or ()}
        done = subprocess.run(
            [program, *map(str, self._given.get("args") or ())],
            env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked), **extra},
            stdin=subprocess.DEVNULL,  # nobody is there to be asked
            capture_output=True,
            timeout=_EXEC_S,
            check=True,
        )
        return done.stdout

    def _show_certificate(self, status: Mapping[str, Any]) -> None:
        if self._verify is None:
            raise ValueError("no token")
        certificate, key = (str(status[name]).encode() for name in ("clientCertificateData", "clientKeyData"))
        load_certificate(self._verify, certificate, key)
