"""Call slurmrestd, each call with a timeout, and parse its answers. Nothing is judged here.

API v0.0.42 is the one that Slurm 24.11 to 26.05 have in common. It can neither filter a listing by user, nor tell the
default partition. The steps of a job are known to accounting only.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from orchestrator.backends.slurm.capacity import SlurmNode
from orchestrator.backends.slurm.client import refuse, require_answer
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import NAME_OF_ATTEMPT, SlurmJob
from orchestrator.backends.slurm.render import Request
from orchestrator.backends.slurm.rest_answers import parse_job, parse_nodes, parse_row
from orchestrator.backends.slurm.rest_request import Json, render_job
from orchestrator.domain.errors import BackendUnavailable, ConfigurationError
from orchestrator.domain.job.native_request import NativeRequest

API = "v0.0.42"
_UNIX = "unix:"
_UNKNOWN_JOB = "Invalid job id specified"
_OVER = (_UNKNOWN_JOB, "already finished", "already completing or completed", "no longer pending")
_MOST_LETTERS = 500


@dataclass(frozen=True, kw_only=True)
class RestAccess:
    """Where slurmrestd is, and as whom it is called.

    `url` is http(s)://HOST:PORT or unix:PATH. Without a token file, slurmrestd knows the caller by the socket.
    """

    url: str
    partition: str  # the default one
    user: str | None = None  # None means the user of this process
    token_file: Path | None = None  # with a JSON web token, read for each call, so that it can be renewed


class Refused(Exception):
    """Slurm's own errors, in its words."""


class NotServed(BackendUnavailable):
    """slurmrestd has no such path: another API version, or no accounting."""


class SlurmRest:
    """Thread-safe. Raises ConfigurationError if this machine knows no such user."""

    def __init__(self, access: RestAccess, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self._access = access
        self._user_name, self.user = _find_user(access.user)
        is_socket = access.url.startswith(_UNIX)
        self._http = httpx.Client(
            base_url="http://slurmrestd" if is_socket else access.url,
            transport=httpx.HTTPTransport(uds=access.url.removeprefix(_UNIX)) if is_socket else transport,
            timeout=timeout_s,
            trust_env=False,
            headers={"User-Agent": "elastic-orchestrator", "Accept": "application/json"},
        )
        self._has_accounting = True

    def close(self) -> None:
        self._http.close()

    def render(self, request: Request) -> NativeRequest:
        body = json.dumps(_render_body(request), indent=2)
        return NativeRequest(kind="slurmrestd", text=f"POST /slurm/{API}/job/submit\n{body}\n")

    def submit(self, request: Request) -> int:
        try:
            answer = self._ask("POST", "slurm", "job/submit", body=_render_body(request))
        except Refused as error:
            raise refuse(str(error)) from None
        if not isinstance(number := answer.get("job_id"), int) or number <= 0:
            raise BackendUnavailable(f"slurmrestd answered without a job's id: {str(answer)[:_MOST_LETTERS]}")
        return number

    def jobs(self) -> list[SlurmJob]:
        own = [job for job in self._list("slurm", "jobs/", "jobs") if job.get("user_id") == self.user]
        return _parse(job for job in own if NAME_OF_ATTEMPT.search(str(job.get("name"))))

    def job(self, number: int) -> SlurmJob | None:
        try:
            found = self._ask("GET", "slurm", f"job/{number}").get("jobs")
        except Refused as error:
            if _UNKNOWN_JOB in str(error):
                return None
            raise BackendUnavailable(str(error)) from None
        return next((job for job in _parse(found or ()) if job.id == number), None)

    def jobs_with_steps(self) -> frozenset[int]:
        running = self._list("slurmdb", "jobs/", "jobs", query={"users": self._user_name, "state": "RUNNING"})
        return frozenset(row.id for row in _parse(filter(_runs_a_step, running), parse_row))

    def accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        if not self._has_accounting or not numbers:
            return []
        query = {"step": ",".join(map(str, sorted(numbers))), "show_duplicates": "true", "skip_steps": "true"}
        try:
            rows = _parse(self._list("slurmdb", "jobs/", "jobs", query=query), parse_row)
        except NotServed:
            self._has_accounting = False
            return []
        return sorted(rows, key=lambda row: row.submitted_at or 0.0)

    def signal(self, number: int, name: str) -> None:
        self._delete(number, {"signal": name, "flags": "FULL_STEPS_ONLY"})

    def cancel(self, number: int) -> None:
        self._delete(number, {})

    def exclude(self, number: int, nodes: str) -> None:
        try:
            self._ask("POST", "slurm", f"job/{number}", body={"excluded_nodes": list(parse_hostlist(nodes))})
        except Refused as error:
            if not any(words in str(error) for words in _OVER):
                raise BackendUnavailable(str(error)) from None

    def nodes(self) -> list[SlurmNode]:
        return parse_nodes(self._list("slurm", "nodes/", "nodes"), default=self._access.partition)

    def has_accounting(self) -> bool:
        """Whether slurmrestd reaches slurmdbd."""
        try:
            self._ask("GET", "slurmdb", "ping/")
        except (Refused, BackendUnavailable):
            return False
        return True

    def version(self) -> str:
        """Return Slurm's version. Raises BackendUnavailable."""
        try:
            answer = self._ask("GET", "slurm", "ping/")
        except Refused as error:
            raise BackendUnavailable(str(error)) from None
        meta = answer.get("meta")
        slurm = meta.get("slurm") if isinstance(meta, dict) else None
        return str(slurm.get("release")) if isinstance(slurm, dict) else ""

    def _list(self, plugin: str, path: str, name: str, *, query: Mapping[str, str] | None = None) -> list[Json]:
        """Return the objects of a listing. Raises BackendUnavailable for any error: it proves nothing about any job."""
        try:
            found = self._ask("GET", plugin, path, query=query).get(name)
        except Refused as error:
            raise BackendUnavailable(str(error)) from None
        if not isinstance(found, list):
            raise BackendUnavailable(f"slurmrestd's answer has no {name}")
        return [each for each in found if isinstance(each, dict)]

    def _delete(self, number: int, query: Mapping[str, str]) -> None:
        with suppress(Refused):  # the answer for an ended job varies; the next listing shows what happened
            self._ask("DELETE", "slurm", f"job/{number}", query=query)

    def _ask(
        self, method: str, plugin: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Raises Refused with Slurm's errors, BackendUnavailable."""
        try:
            answer = self._http.request(
                method, f"/{plugin}/{API}/{path}", params=query, json=body, headers=self._identity()
            )
        except httpx.TimeoutException as error:
            raise BackendUnavailable(f"slurmrestd did not answer within {self._http.timeout.read:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise BackendUnavailable(f"cannot reach slurmrestd at {self._access.url}: {error}") from error
        return _read(answer)

    def _identity(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        try:
            token = self._access.token_file.read_text().strip().removeprefix("SLURM_JWT=")
        except OSError as error:
            raise BackendUnavailable(f"cannot read the token for slurmrestd: {error}") from error
        return {"X-SLURM-USER-NAME": self._user_name, "X-SLURM-USER-TOKEN": token}


def _render_body(request: Request) -> Json:
    """Raises LaunchRefused."""
    return {"script": request.script, "job": render_job(request.arguments)}


def _parse(jobs: Iterable[Json], parse: Callable[[Json], SlurmJob] = parse_job) -> list[SlurmJob]:
    """Raises BackendUnavailable if a job has no id, since such an answer proves nothing about any job."""
    try:
        return [parse(job) for job in jobs]
    except ValueError as error:
        raise BackendUnavailable(f"cannot parse slurmrestd's listing: {error}") from error


def _read(answer: httpx.Response) -> Json:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotServed(f"slurmrestd does not serve {answer.url.path}; it needs API {API} (Slurm 24.11 to 26.05)")
        raise BackendUnavailable(f"slurmrestd answered {answer.status_code}: {answer.text[:_MOST_LETTERS]}")
    errors = document.get("errors") or []
    if answer.is_success and not errors:
        return document
    said = "; ".join(map(_describe, errors))[:_MOST_LETTERS]
    if not said or answer.status_code == httpx.codes.UNAUTHORIZED:
        raise BackendUnavailable(f"slurmrestd answered {answer.status_code} {said}".rstrip())
    require_answer(said, complaint=said)
    raise Refused(said)


def _describe(error: object) -> str:
    """Return Slurm's words, and what slurmrestd adds to them."""
    if not isinstance(error, dict):
        return str(error)
    words = (error.get("error"), error.get("description"))
    return ": ".join(str(each) for each in words if each)


def _runs_a_step(job: Json) -> bool:
    """Whether accounting knows a step of the job without an end that is not one of Slurm's own: batch, extern."""
    steps = job.get("steps")
    return any(_is_running(step) for step in steps if isinstance(step, dict)) if isinstance(steps, list) else False


def _is_running(step: Json) -> bool:
    number = str((step.get("step") or {}).get("id")).rpartition(".")[2]
    return number.isdecimal() and "RUNNING" in (step.get("state") or ())


def _find_user(name: str | None) -> tuple[str, int]:
    """Return name and id. Raises ConfigurationError."""
    try:
        found = pwd.getpwuid(os.getuid()) if name is None else pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(f"this machine knows no user {os.getuid() if name is None else name}") from None
    return found.pw_name, found.pw_uid
