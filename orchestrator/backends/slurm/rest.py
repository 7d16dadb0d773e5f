"""Call slurmrestd, each call with a timeout, and parse its answers. Nothing is judged here.

API v0.0.42 is the one that Slurm 24.11 to 26.05 have in common. It cannot filter jobs by user, and does not report the
default partition. Only accounting lists the steps of a job.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from orchestrator.backends.slurm.capacity import SlurmNode
from orchestrator.backends.slurm.client import NO_LONGER_WAITS, UNKNOWN_JOB, classify_refusal, require_answer
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import NAME_OF_ATTEMPT, SlurmJob
from orchestrator.backends.slurm.render import Request
from orchestrator.backends.slurm.rest_answers import parse_job, parse_nodes, parse_row, runs_a_step
from orchestrator.backends.slurm.rest_request import Json, render_job
from orchestrator.domain.errors import BackendUnavailable, ConfigurationError, LaunchRefused
from orchestrator.domain.job.native_request import NativeRequest

API = "v0.0.42"
_UNIX = "unix:"
_MAX_CHARS = 500
_TOKEN = re.compile(r"[!-~]+")
_TOKEN_HEADER = "X-SLURM-USER-TOKEN"
_TOKEN_HINT = "; the token in rest_token_file may have expired, or belong to another user"
_COMMUNICATION = {*range(1000, 1900), *range(5000, 7000)}  # slurm_errno.h: with the controller, and authentication


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAccess:
    """Where slurmrestd is, and as whom it is called.

    `url` is http(s)://HOST:PORT or unix:/PATH. Without a token file it is a socket, and slurmrestd runs as the same
    user (rest_auth/local).
    """

    url: str
    default_partition: str  # or several, with commas
    user: str | None = None  # the name of the token's user; None means that of this process's user
    token_file: Path | None = None  # with a JSON web token, read for each call, so that it can be renewed


class _SlurmError(Exception):
    """slurmrestd answered with errors of Slurm. The message has Slurm's sentences."""


class _NotServed(BackendUnavailable):
    """slurmrestd has no such path: another API version, or no accounting."""


class SlurmRest:
    """Thread-safe. Raises ConfigurationError if the user is not that of this process, or has no name here."""

    def __init__(self, access: RestAccess, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self._access = access
        self.user = os.getuid()  # jobs read files that only this user can read
        self._user_name = _find_name(access.user)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        is_socket = access.url.startswith(_UNIX)
        self._http = httpx.Client(
            base_url="http://slurmrestd" if is_socket else access.url,
            transport=httpx.HTTPTransport(uds=access.url.removeprefix(_UNIX)) if is_socket else transport,
            timeout=timeout_s,
            trust_env=False,
            headers={"User-Agent": "elastic-orchestrator", "Accept": "application/json"},
        )
        self._serves_accounting = True

    def close(self) -> None:
        self._http.close()

    def render(self, request: Request) -> NativeRequest:
        body = json.dumps(self._body(request), indent=2)
        return NativeRequest(kind="slurmrestd", text=f"POST /slurm/{API}/job/submit\n{body}\n")

    def submit(self, request: Request) -> int:
        try:
            answer = self._ask("POST", "slurm", "job/submit", body=self._body(request))
        except _SlurmError as error:
            raise classify_refusal(str(error)) from None
        if not isinstance(number := answer.get("job_id"), int) or number <= 0:
            raise BackendUnavailable(f"slurmrestd answered without a job's id: {str(answer)[:_MAX_CHARS]}")
        self._require_own(number)
        return number

    def _require_own(self, number: int) -> None:
        """Cancel a job of another user, which `jobs` would not list. Raises LaunchRefused."""
        made = None
        with suppress(BackendUnavailable):  # the job is submitted; the next submission checks the user again
            made = self.job(number)
        if made is None or made.user in (None, self.user):
            return
        with suppress(BackendUnavailable):
            self.cancel(number)
        raise LaunchRefused(f"slurmrestd starts jobs as the user with id {made.user}, not as the service's user")

    def jobs(self) -> list[SlurmJob]:
        listed = self._list("slurm", "jobs/", "jobs")
        if not all(isinstance(job.get("user_id"), int) for job in listed):
            raise BackendUnavailable("slurmrestd lists a job without a user's id")
        own = [job for job in listed if job["user_id"] == self.user]
        return _parse(job for job in own if NAME_OF_ATTEMPT.search(str(job.get("name"))))

    def job(self, number: int) -> SlurmJob | None:
        try:
            answer = self._ask("GET", "slurm", f"job/{number}")
        except _SlurmError as error:
            if UNKNOWN_JOB in str(error):
                return None
            raise BackendUnavailable(str(error)) from None
        return next((job for job in _parse(_objects(answer, "jobs")) if job.id == number), None)

    def jobs_with_steps(self) -> frozenset[int]:
        running = self._list("slurmdb", "jobs/", "jobs", query={"users": self._user_name, "state": "RUNNING"})
        return frozenset(row.id for row in _parse(filter(runs_a_step, running), parse_row))

    def accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        if not self._serves_accounting or not numbers:
            return []
        query = {"step": ",".join(map(str, sorted(numbers))), "show_duplicates": "true", "skip_steps": "true"}
        try:
            rows = _parse(self._list("slurmdb", "jobs/", "jobs", query=query), parse_row)
        except _NotServed:
            self._serves_accounting = False
            return []
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def signal(self, number: int, name: str) -> None:
        self._delete(number, {"signal": name, "flags": "FULL_STEPS_ONLY"})

    def cancel(self, number: int) -> None:
        self._delete(number, {})

    def exclude(self, number: int, nodes: str) -> None:
        names = list(parse_hostlist(nodes)) or [""]  # an empty list would change nothing
        try:
            self._ask("POST", "slurm", f"job/{number}", body={"excluded_nodes": names})
        except _SlurmError as error:
            if not any(words in str(error) for words in NO_LONGER_WAITS):
                raise BackendUnavailable(str(error)) from None

    def nodes(self) -> list[SlurmNode]:
        return parse_nodes(self._list("slurm", "nodes/", "nodes"), default=self._access.default_partition)

    def has_accounting(self) -> bool:
        """Whether slurmrestd serves accounting. Raises BackendUnavailable without an answer."""
        try:
            self._ask("GET", "slurmdb", "ping/")
        except _NotServed:
            return False
        except _SlurmError as error:
            raise BackendUnavailable(str(error)) from None
        return True

    def version(self) -> str:
        """Return Slurm's version. Raises BackendUnavailable."""
        try:
            answer = self._ask("GET", "slurm", "ping/")
        except _SlurmError as error:
            raise BackendUnavailable(str(error)) from None
        meta = answer.get("meta")
        slurm = meta.get("slurm") if isinstance(meta, dict) else None
        return str(slurm.get("release")) if isinstance(slurm, dict) else ""

    def _list(self, plugin: str, path: str, name: str, *, query: Mapping[str, str] | None = None) -> list[Json]:
        """Return the objects of a listing. Raises BackendUnavailable for any error: it proves nothing about any job."""
        try:
            return _objects(self._ask("GET", plugin, path, query=query), name)
        except _SlurmError as error:
            raise BackendUnavailable(str(error)) from None

    def _delete(self, number: int, query: Mapping[str, str]) -> None:
        try:
            self._ask("DELETE", "slurm", f"job/{number}", query=query)
        except _SlurmError as error:
            # While the controller is down, 24.11 answers "Operation not permitted": the job may still run.
            if not any(words in str(error) for words in NO_LONGER_WAITS):
                raise BackendUnavailable(str(error)) from None

    def _body(self, request: Request) -> Json:
        """Raises LaunchRefused."""
        return {"script": request.script, "job": render_job(request.arguments, umask=self._umask)}

    def _ask(
        self, method: str, plugin: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Raises _SlurmError, BackendUnavailable."""
        try:
            answer = self._http.request(
                method, f"/{plugin}/{API}/{path}", params=query, json=body, headers=self._identity()
            )
        except httpx.TimeoutException as error:
            raise BackendUnavailable(f"slurmrestd did not answer within {self._http.timeout.read:g} s") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise BackendUnavailable(f"cannot make a request to slurmrestd at {self._access.url}: {error}") from error
        except (httpx.HTTPError, OSError) as error:
            raise BackendUnavailable(f"cannot reach slurmrestd at {self._access.url}: {error}") from error
        return _read(answer)

    def _identity(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        try:
            token = self._access.token_file.read_bytes().strip().removeprefix(b"SLURM_JWT=").decode(errors="replace")
        except OSError as error:
            raise BackendUnavailable(f"cannot read the token for slurmrestd: {error}") from error
        if _TOKEN.fullmatch(token) is None:  # in a header it would be an error that quotes it
            raise BackendUnavailable(f"{self._access.token_file} does not hold one token")
        return {"X-SLURM-USER-NAME": self._user_name, _TOKEN_HEADER: token}


def _objects(answer: Json, name: str) -> list[Json]:
    """Raises BackendUnavailable if the answer has no such list."""
    found = answer.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BackendUnavailable(f"slurmrestd's answer has no list of objects named {name}")
    return found


def _parse(jobs: Iterable[Json], parse: Callable[[Json], SlurmJob] = parse_job) -> list[SlurmJob]:
    """Raises BackendUnavailable if a job has no id, since such an answer proves nothing about any job."""
    try:
        return [parse(job) for job in jobs]
    except ValueError as error:
        raise BackendUnavailable(f"cannot parse slurmrestd's listing: {error}") from error


def _read(answer: httpx.Response) -> Json:
    try:
        document = json.loads(answer.content.decode(errors="replace"))  # names of jobs may hold any byte
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        if answer.status_code == httpx.codes.NOT_FOUND:
            needed = f"the service needs API {API} (Slurm 24.11 to 26.05)"
            raise _NotServed(f"slurmrestd does not serve {answer.url.path}; {needed}")
        raise BackendUnavailable(
            f"slurmrestd answered {answer.status_code}: {answer.content[:_MAX_CHARS].decode(errors='replace')}"
        )
    errors = given if isinstance(given := document.get("errors"), list) else []
    if answer.is_success and not errors:
        return document
    said = "; ".join(map(_describe, errors))[:_MAX_CHARS]
    is_refused = answer.status_code == httpx.codes.UNAUTHORIZED
    has_token = _TOKEN_HEADER in answer.request.headers
    hint = _TOKEN_HINT if has_token and (is_refused or "authentication error" in said) else ""
    if not said or is_refused:
        raise BackendUnavailable(f"slurmrestd answered {answer.status_code} {said}".rstrip() + hint)
    require_answer(said, complaint=said + hint)
    if any(number in _COMMUNICATION for number in map(_find_number, errors)):
        raise BackendUnavailable(said)
    raise _SlurmError(said)


def _find_number(error: object) -> int | None:
    found = error.get("error_number") if isinstance(error, dict) else None
    return found if isinstance(found, int) else None


def _describe(error: object) -> str:
    """Return Slurm's words, and what slurmrestd adds to them."""
    if not isinstance(error, dict):
        return str(error)
    words = (error.get("error"), error.get("description"))
    return ": ".join(str(each) for each in words if each)


def _find_name(given: str | None) -> str:
    """Return the name of this process's user. Raises ConfigurationError."""
    own = os.getuid()
    with suppress(KeyError):
        if given is not None and pwd.getpwnam(given).pw_uid != own:
            raise ConfigurationError(
                f"rest_user {given} is not the service's user, so its jobs could not read their files"
            )
    with suppress(KeyError):
        return given or pwd.getpwuid(own).pw_name
    raise ConfigurationError(f"this machine has no name for the user with id {own}: set rest_user")
