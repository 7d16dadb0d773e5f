"""Send requests with retries, and translate error answers.

Raises NotFound, RequestRefused (a Refused with the problem document), ServiceUnreachable (an Unavailable), and
ConfigurationError for an invalid address.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from orchestrator.client.errors import RequestRefused, ServiceUnreachable
from orchestrator.client.locator import Address
from orchestrator.domain.errors import ConfigurationError, NotFound
from orchestrator.wire.problems import Problem
from orchestrator.wire.service import WARNING_HEADER

_TOO_MANY = 429  # the request was not processed; with the other codes it may have been
_MISDIRECTED = 421  # another service answers
_OVERLOADED = frozenset({_TOO_MANY, 502, 503, 504})
_JOB = re.compile(r"/api/v1/jobs/([^/]+)")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# Proxies of the environment are not used for a service on this host.
_DIRECT = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `repeatable` means that it is idempotent."""

    method: str
    path: str
    repeatable: bool
    params: Mapping[str, str | int] | None = None
    body: object | None = None
    headers: Mapping[str, str] | None = None


def _require_plain(token: str) -> str:
    """Return the token without the line break of its file. Raises ConfigurationError, which does not show the token."""
    plain = token.strip()
    if not (plain.isascii() and plain.isprintable()):
        raise ConfigurationError(
            "the token contains a character that a header cannot carry; set ORCHESTRATOR_TOKEN again"
        )
    return plain


class Transport:
    """Sends calls, and retries them while the service is away. It calls `locate` before each try, because a restarted
    service may have another port."""

    def __init__(
        self,
        locate: Callable[[], Address],
        *,
        token: str | None = None,
        timeout_s: float = 30,
        patience_s: float = 30,
        on_retry: Callable[[ServiceUnreachable], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._headers = {"Authorization": f"Bearer {_require_plain(token)}"} if token else {}
        self._timeout_s = timeout_s
        self._clients: dict[str, httpx.Client] = {}  # by scheme
        self.locate, self.patience_s, self.on_retry = locate, patience_s, on_retry
        self._on_warning, self._warned = on_warning, ""
        self.clock, self.sleep = clock, sleep

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client_of(self, url: str) -> httpx.Client:
        """An SSL context takes 20 ms, so it is created only if needed."""
        scheme = url.partition(":")[0]
        if scheme not in self._clients:
            self._clients[scheme] = httpx.Client(
                timeout=self._timeout_s, headers=self._headers, mounts=_DIRECT, verify=scheme == "https"
            )
        return self._clients[scheme]

    def send(self, call: Call, *, patience_s: float | None = None) -> httpx.Response:
        """Send a call until it is answered. Raises ServiceUnreachable after `patience_s`, NotFound, RequestRefused."""
        patience = Patience(self, self.patience_s if patience_s is None else patience_s)
        while True:
            try:
                return self._once(call, self.locate())
            except ServiceUnreachable as failure:
                patience.wait(failure)

    def _once(self, call: Call, address: Address) -> httpx.Response:
        headers = {**(call.headers or {}), **address.headers}
        with _translated(address.url, call.repeatable):
            response = self._client_of(address.url).request(
                call.method, address.url + call.path, params=call.params, json=call.body, headers=headers
            )
        _raise_for(response, address.url, repeatable=call.repeatable)
        self._warn(response.headers.get(WARNING_HEADER, ""))
        return response

    def _warn(self, warning: str) -> None:
        """Pass on a warning of the service, once as long as it stays the same."""
        if warning and warning != self._warned and self._on_warning is not None:
            self._on_warning(warning)
        self._warned = warning

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str | int], *, read_timeout_s: float) -> Iterator[httpx.Response]:
        """Open a stream, in one try. Raises as `send` does, also while the body is read."""
        address = self.locate()
        client, timeout = self._client_of(address.url), httpx.Timeout(10, read=read_timeout_s)
        with (
            _translated(address.url, repeatable=True),
            client.stream(
                "GET", address.url + path, params=params, timeout=timeout, headers=address.headers
            ) as response,
        ):
            if not response.is_success:
                response.read()
                _raise_for(response, address.url, repeatable=True)
            yield response


class Patience:
    """Growing, jittered pauses between tries until `limit_s` have passed since the last success."""

    def __init__(self, transport: Transport, limit_s: float) -> None:
        self._transport, self._limit_s = transport, limit_s
        self.restart()

    def restart(self) -> None:
        self._deadline = self._transport.clock() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, failure: ServiceUnreachable) -> None:
        """Pause before the next try. Raises `failure` if the call must not be retried or the time is over."""
        wait_s = max(self._pause_s * random.uniform(0.5, 1), min(failure.wait_s, self._limit_s / 2))
        if not failure.repeatable or self._transport.clock() + wait_s > self._deadline:
            raise failure
        if self._transport.on_retry is not None:
            self._transport.on_retry(failure)
        self._transport.sleep(wait_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


@contextmanager
def _translated(url: str, repeatable: bool) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        raise ServiceUnreachable(url, _cause(error), repeatable=repeatable or unsent) from error


def _cause(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "did not answer in time"
    if isinstance(error, httpx.ConnectError):
        return f"cannot be reached ({error})"
    return f"closed the connection ({error or type(error).__name__})"


def _raise_for(response: httpx.Response, url: str, *, repeatable: bool) -> None:
    """Raises ServiceUnreachable, NotFound or RequestRefused for an error answer."""
    if response.is_success:
        return
    problem = _problem(response)
    if response.status_code in _OVERLOADED:
        detail = problem.detail if problem else f"HTTP status {response.status_code}"
        raise ServiceUnreachable(
            url,
            f"cannot answer now ({detail})",
            repeatable=repeatable or response.status_code == _TOO_MANY,
            wait_s=_retry_after_s(response),
        )
    if problem is None:
        raise ServiceUnreachable(url, f"does not answer like an orchestrator (HTTP status {response.status_code})")
    if response.status_code == _MISDIRECTED:
        raise ServiceUnreachable(url, "uses another run directory than the one that the settings name")
    if response.status_code == 404:
        raise NotFound(problem.detail or problem.title)
    if response.status_code >= 500:
        raise ServiceUnreachable(url, f"failed: {problem.detail or problem.title}; its log says why")
    job = _JOB.search(response.request.url.path)
    raise RequestRefused(problem, None if job is None else job[1])


def _problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def _retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), 60.0) if value.isascii() and value.isdigit() else 0.0
