"""The outermost layer of every request: its id, who may ask, what is counted, and the last resort for errors.

Plain ASGI, so that streams pass untouched.
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

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_HOST = "*"  # where every caller has a token: a page that rebinds its name has none, for cookies go by name

_NAMES = "call it by one of its own, or have its admin add this one to ORCHESTRATOR_ALLOWED_HOSTS"
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

_log = structlog.get_logger(__name__)


class Edge:
    """`allowed_hosts` are names without a port; a page that rebinds its own name to this address is not among them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        allowed_hosts: frozenset[str],
        body_memory: BodyMemory,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._monotonic = monotonic
        self._metrics = metrics
        self._body_memory = body_memory
        self._hosts = frozenset(host.lower() for host in LOOPBACK_HOSTS | allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = _Answer(send, _request_id(headers), self._monotonic)
        scope[BODY_USE] = body_use = BodyUse(self._body_memory)
        with structlog.contextvars.bound_contextvars(request_id=answer.request_id):
            refusal = refuse_request(scope["method"], headers, self._hosts) or refuse_address(scope)
            if refusal is not None:
                await respond(refusal)(scope, receive, answer.send)
            else:
                await self._run(scope, receive, answer, body_use)
            self._account_for(scope, answer)

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer, body_use: BodyUse) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            if answer.status is not None:
                raise  # half of an answer is out: the server breaks the connection off
            detail = f"The service failed on this request; its log tells more under request id {answer.request_id}."
            await respond(build_problem("internal", detail))(scope, receive, answer.send)
        finally:
            body_use.release()

    def _account_for(self, scope: Scope, answer: _Answer) -> None:
        """Count the request, and write a line of it: the pattern of its path and no query, which may hold a secret."""
        method = scope["method"] if scope["method"] in _COUNTED_METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(method=method, route=route, status=str(answer.status or "none")).inc()
        if answer.waited_s is not None:
            self._metrics.request_seconds.labels(method, route).observe(answer.waited_s)
        # Reads and reports come by the thousand; a change is worth a line.
        tell = _log.info if method not in _SAFE_METHODS and route != _REPORTS else _log.debug
        tell("request", method=method, route=route, status=answer.status, seconds=answer.waited_s, **_ids(scope))


class _Answer:
    """Adds headers to what is sent, and remembers the status and how long it took to come."""

    def __init__(self, send: Send, request_id: str, monotonic: Callable[[], float]) -> None:
        self._send = send
        self._monotonic = monotonic
        self._began = monotonic()
        self.request_id = request_id
        self.status: int | None = None
        self.waited_s: float | None = None  # until the first byte

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.waited_s = round(self._monotonic() - self._began, 6)
            headers = MutableHeaders(scope=message)
            headers[_REQUEST_ID] = self.request_id
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def refuse_request(method: str, headers: Mapping[str, str], allowed_hosts: frozenset[str]) -> Problem | None:
    """Why a request may not pass: another Host name, or a change that a page of another site asks for."""
    host = headers.get("host", "")
    if ANY_HOST not in allowed_hosts and _name_of(host) not in allowed_hosts:
        return build_problem("host-not-allowed", f"Host {host[:200]!r} is not a name of this service; {_NAMES}")
    if method in _SAFE_METHODS:
        return None
    origin = headers.get("origin")
    if origin is not None and not _same_origin(origin, host):
        return build_problem("origin-not-allowed", f"Origin {origin[:200]!r} may not change anything here")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return build_problem("origin-not-allowed", "a page of another site may not change anything here")
    return None


def _ids(scope: Scope) -> dict[str, str]:
    """What the path names, so that the lines of one job can be found."""
    job = scope.get("path_params", {}).get("job_id")
    return {} if job is None else {"job": str(job)[:100]}


def refuse_address(scope: Scope) -> Problem | None:
    """A token in an address ends up in histories and in the logs of proxies: it is refused, wherever it stands."""
    address = bytes(scope.get("raw_path") or b"") + b"?" + bytes(scope.get("query_string", b""))
    if _TOKEN_SHAPE.search(address) is None:
        return _refuse_text(address)
    detail = "Send the token in the header `Authorization: Bearer ...`. This one has been in an address: revoke it."
    return build_problem("token-in-url", detail)


def _refuse_text(address: bytes) -> Problem | None:
    """Refuse text that PostgreSQL cannot store, and that SQLite compares only up to the NUL."""
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
