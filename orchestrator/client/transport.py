"""Find the service, send requests with retries, and translate error answers.

Raises NotFound, RequestRefused (a Refused with the problem document), ServiceUnreachable (an Unavailable), and
ConfigurationError for an invalid address.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from orchestrator.domain.errors import ConfigurationError, NotFound, Refused, Unavailable
from orchestrator.settings import Settings
from orchestrator.wire.problems import Problem

_SERVICE_FILE = "service.json"
_TOO_MANY = 429  # the request was not processed; with the other codes it may have been
_OVERLOADED = frozenset({_TOO_MANY, 502, 503, 504})
_JOB = re.compile(r"/api/v1/jobs/([^/]+)")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# Proxies of the environment are not used for a service on this host.
_DIRECT = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}


class ServiceUnreachable(Unavailable):
    """No answer, or one that is not from an orchestrator. `repeatable` means that the call may be sent again."""

    def __init__(self, url: str, cause: str, *, repeatable: bool = False, wait_s: float = 0) -> None:
        super().__init__(f"the service at {url} {cause}")
        self.url, self.repeatable, self.wait_s = url, repeatable, wait_s


class RequestRefused(Refused):
    """The service refused a request. `problem` is its RFC 9457 document. `job_id` is the job of the request, if any."""

    def __init__(self, problem: Problem, job_id: str | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem, self.job_id = problem, job_id


def find_url(settings: Settings) -> str:
    """Return the service's URL: from the setting, or from <root>/service.json, or from the configured host and port."""
    return Locator(settings)()


class Locator:
    """`find_url` for repeated calls. While a service restarts, its file is missing and its last address is returned."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._written: str | None = None

    def __call__(self) -> str:
        settings = self._settings
        if settings.url:
            return _checked(settings.url, "ORCHESTRATOR_URL")
        url = written_url(settings.root)
        if url is None:
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(settings.host, settings.host)
            return self._written or f"http://{host}:{settings.port}"
        self._written = _checked(url, str(settings.root / _SERVICE_FILE))
        return self._written


def written_url(root: Path) -> str | None:
    """Return the address that the service of this run directory wrote to its file. None without a file."""
    try:
        return str(json.loads((root / _SERVICE_FILE).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checked(url: str, origin: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(f"{origin} is {url!r}, must be like http://host:8700")
    return url.rstrip("/")


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
        locate: Callable[[], str],
        *,
        token: str | None = None,
        timeout_s: float = 30,
        patience_s: float = 30,
        on_retry: Callable[[ServiceUnreachable], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"Authorization": f"Bearer {_require_plain(token)}"} if token else {}
        # An SSL context takes 20 ms, so it is created only if needed.
        self._http = httpx.Client(
            timeout=timeout_s, headers=headers, mounts=_DIRECT, verify=locate().startswith("https:")
        )
        self.locate, self.patience_s, self.on_retry = locate, patience_s, on_retry
        self.clock, self.sleep = clock, sleep

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call, *, patience_s: float | None = None) -> httpx.Response:
        """Send a call until it is answered. Raises ServiceUnreachable after `patience_s`, NotFound, RequestRefused."""
        patience = Patience(self, self.patience_s if patience_s is None else patience_s)
        while True:
            url = self.locate()
            try:
                return self._once(call, url)
            except ServiceUnreachable as failure:
                patience.wait(failure)

    def _once(self, call: Call, url: str) -> httpx.Response:
        with _translated(url, call.repeatable):
            response = self._http.request(
                call.method, url + call.path, params=call.params, json=call.body, headers=call.headers
            )
        _raise_for(response, url, repeatable=call.repeatable)
        return response

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str | int], *, read_timeout_s: float) -> Iterator[httpx.Response]:
        """Open a stream, in one try. Raises as `send` does, also while the body is read."""
        url = self.locate()
        timeout = httpx.Timeout(10, read=read_timeout_s)
        with (
            _translated(url, repeatable=True),
            self._http.stream("GET", url + path, params=params, timeout=timeout) as response,
        ):
            if not response.is_success:
                response.read()
                _raise_for(response, url, repeatable=True)
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
