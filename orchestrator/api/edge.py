"""The outermost layer of every request: request id, host and origin checks, metrics, and unexpected errors.

It is plain ASGI, so that streams pass unbuffered.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeGuard
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.api.body_memory import BodyMemory, BodyUse
from orchestrator.api.body_stream import BODY_USE
from orchestrator.api.errors import build_problem, respond
from orchestrator.telemetry.metrics import Metrics
from orchestrator.wire.problems import Problem
from orchestrator.wire.service import INSTANCE_HEADER, WARNING_HEADER

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
# Accept every host name. Safe where every caller has a token: a page that rebinds its DNS name has none, because
# browsers send a cookie only to the name that set it.
ANY_HOST = "*"

_NAMES = "use an allowed name, or let an admin add this one to ORCHESTRATOR_ALLOWED_HOSTS"
_REQUEST_ID = "X-Request-ID"
_REQUEST_ID_SHAPE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_TOKEN_SHAPE = re.compile(rb"orc_[0-9a-f]{16}_|orw_[0-9a-f]{64}|[?&](?:access_token|api_key|token)=", re.IGNORECASE)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_COUNTED_METHODS = _SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
_REPORTS = "/api/v1/reports"
_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would send our own forms with Origin null
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

_API = "/api/"
_FRAGMENT_HEADER = "X-Fragment"
_FIRST_ERROR_STATUS = 400
_log = structlog.get_logger(__name__)


class Edge:
    """`allowed_hosts` are names without a port. They keep out pages that rebind their own DNS name to this address."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        allowed_hosts: frozenset[str],
        instance: str,
        body_memory: BodyMemory,
        trouble: Callable[[], str | None],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._instance = instance
        self._trouble = trouble
        self._body_memory = body_memory
        self._hosts = frozenset(host.lower() for host in LOOPBACK_HOSTS | allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = _Answer(send, _request_id(headers))
        if scope["path"].startswith(_API) or _FRAGMENT_HEADER in headers:  # what only callers with a role get
            answer.warning = self._trouble()
        scope[BODY_USE] = body_use = BodyUse(self._body_memory)
        with structlog.contextvars.bound_contextvars(request_id=answer.request_id):
            refusal = (
                refuse_request(scope["method"], headers, self._hosts)
                or refuse_address(scope)
                or self._refuse_instance(headers)
            )
            if refusal is not None:
                await respond(refusal)(scope, receive, answer.send)
            else:
                await self._run(scope, receive, answer, body_use)
            self._account_for(scope, answer)

    def _refuse_instance(self, headers: Headers) -> Problem | None:
        """The problem of a request that is meant for the service of another run directory."""
        if headers.get(INSTANCE_HEADER, self._instance) == self._instance:
            return None
        return build_problem("another-service", "This service uses another run directory than the request's.")

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer, body_use: BodyUse) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            if answer.status is not None:
                raise  # a part of the answer is sent: the server closes the connection
            detail = f"The service failed on this request. Its log has details under request id {answer.request_id}."
            await respond(build_problem("internal", detail))(scope, receive, answer.send)
        finally:
            body_use.release()

    def _account_for(self, scope: Scope, answer: _Answer) -> None:
        """Count and log the request, with the route's pattern and without the query, which may contain a secret."""
        method = scope["method"] if scope["method"] in _COUNTED_METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(method=method, route=route, status=str(answer.status or "none")).inc()
        if answer.waited_s is not None:
            self._metrics.request_seconds.labels(method, route).observe(answer.waited_s)
        # Reads and reports come by the thousand, so only changes are logged at level info.
        write = _log.info if method not in _SAFE_METHODS and route != _REPORTS else _log.debug
        write("request", method=method, route=route, status=answer.status, seconds=answer.waited_s, **_ids(scope))


class _Answer:
    """Adds headers to the answer, and records its status and the time to its first byte."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._began = time.monotonic()
        self.request_id = request_id
        self.status: int | None = None
        self.warning: str | None = None  # for an answer without an error
        self.waited_s: float | None = None  # until the first byte

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.waited_s = round(time.monotonic() - self._began, 6)
            headers = MutableHeaders(scope=message)
            headers[_REQUEST_ID] = self.request_id
            if self.warning is not None and self.status < _FIRST_ERROR_STATUS:
                headers[WARNING_HEADER] = self.warning.encode("ascii", "replace").decode()
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def refuse_request(method: str, headers: Mapping[str, str], allowed_hosts: frozenset[str]) -> Problem | None:
    """Return the problem of a request with a foreign Host header, or of a change that a page of another site sends."""
    host = headers.get("host", "")
    if ANY_HOST not in allowed_hosts and _name_of(host) not in allowed_hosts:
        return build_problem("host-not-allowed", f"Host {host[:200]!r} is not an allowed name; {_NAMES}")
    if method in _SAFE_METHODS:
        return None
    origin = headers.get("origin")
    if origin is not None and not _same_origin(origin, host):
        return build_problem("origin-not-allowed", f"pages of the origin {origin[:200]!r} may not change anything here")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return build_problem("origin-not-allowed", "pages of another site may not change anything here")
    return None


def _ids(scope: Scope) -> dict[str, str]:
    """Return the job id of the path, so that the log lines of one job can be found."""
    job = scope.get("path_params", {}).get("job_id")
    return {} if job is None else {"job": str(job)[:100]}


def refuse_address(scope: Scope) -> Problem | None:
    """Refuse a token in a URL, in its path or query: browser histories and the logs of proxies keep it."""
    address = bytes(scope.get("raw_path") or b"") + b"?" + bytes(scope.get("query_string", b""))
    if _TOKEN_SHAPE.search(address) is None:
        return _refuse_text(address)
    detail = "Send the token in the header `Authorization: Bearer ...`. Revoke this token, because it was in a URL."
    return build_problem("token-in-url", detail)


def _refuse_text(address: bytes) -> Problem | None:
    """Refuse text that PostgreSQL cannot store. SQLite would compare it only up to the NUL."""
    text = unquote_to_bytes(address)
    if b"\0" in text:
        return build_problem("malformed", "The URL contains the character NUL (%00), which is not allowed.")
    try:
        text.decode()
    except UnicodeDecodeError:
        return build_problem("malformed", "The URL is not UTF-8.")
    return None


def _same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _request_id(headers: Mapping[str, str]) -> str:
    given = headers.get(_REQUEST_ID.lower())
    return given if _is_request_id(given) else uuid.uuid4().hex


def _is_request_id(text: str | None) -> TypeGuard[str]:
    return text is not None and _REQUEST_ID_SHAPE.fullmatch(text) is not None
