"""The service for Python programs: a typed, synchronous client of `/api/v1`.

with connect(load_settings()) as client:
    job = client.submit({"name": "gpt", "run": {"script": "train.py", "workdir": "/src"}})
    assert client.wait(job.id).state is JobState.SUCCEEDED
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from orchestrator.client_http import Call, Locator, Patience, RequestRefused, ServiceUnreachable, Transport, find_url
from orchestrator.domain.errors import OrchestratorError
from orchestrator.domain.spec import JobSpec
from orchestrator.settings import Settings
from orchestrator.wire import (
    AttemptView,
    ClusterView,
    EventView,
    JobView,
    MetricsView,
    NodeView,
    Page,
    PlanView,
    ProjectView,
    RetryRequest,
    ScaleRequest,
    SnapshotView,
    WorkerView,
)

__all__ = ["Client", "RequestRefused", "ServiceUnreachable", "WaitTimeout", "connect", "find_url"]

Answered = TypeVar("Answered", bound=BaseModel)
Spec = JobSpec | Mapping[str, object]
MAX_LOG_LINES = 10_000  # of one answer: the service's limit
_PAGE = 200  # the service's limit
_QUIET_LOG_S = 300  # a followed log that says nothing for so long is asked for again: the other side may be gone


class LogChoice(TypedDict, total=False):
    """Which lines; `tail` is how many of the last. None is no restriction but the service's."""

    attempt: int | None
    replica: int | None
    rank: int | None
    tail: int | None


class WaitTimeout(OrchestratorError, TimeoutError):
    """The job did not end in time; it goes on."""


def connect(
    settings: Settings,
    *,
    patience_s: float = 30,
    on_retry: Callable[[ServiceUnreachable], None] | None = None,
) -> Client:
    """A client of the service that the settings name; it finds a restarted one on another port."""
    return Client(Locator(settings), patience_s=patience_s, on_retry=on_retry)


class Client:
    """Not for several threads at once. Every call raises NotFound, RequestRefused or ServiceUnreachable; those that
    can be repeated without harm are, for up to `patience_s`."""

    def __init__(
        self,
        url: str | Callable[[], str],
        token: str | None = None,
        *,
        timeout_s: float = 30,
        patience_s: float = 30,
        on_retry: Callable[[ServiceUnreachable], None] | None = None,
    ) -> None:
        fixed = url.rstrip("/") if isinstance(url, str) else None
        self._transport = Transport(
            url if not isinstance(url, str) else lambda: str(fixed),
            token=token,
            timeout_s=timeout_s,
            patience_s=patience_s,
            on_retry=on_retry,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @property
    def url(self) -> str:
        """Where the service was found last."""
        return self._transport.locate()

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> JobView:
        """Submit a job once, however often the call is repeated with one key (default: a new one)."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._post("/jobs", JobView, body=_document(spec), headers=headers, repeatable=True)

    def plan(self, spec: Spec) -> PlanView:
        """The dry run: what would be launched."""
        return self._post("/plan", PlanView, body=_document(spec), repeatable=True)

    def jobs(
        self,
        *,
        state: str | None = None,
        project: str | None = None,
        cluster: str | None = None,
        label: str | None = None,
        query: str | None = None,
    ) -> Iterator[JobView]:
        """Jobs, newest first. `label` is "name=value"; `query` is sought in id, name and reason."""
        filters = {"state": state, "project": project, "cluster": cluster, "label": label, "q": query}
        return self._pages("/jobs", Page[JobView], {name: value for name, value in filters.items() if value})

    def job(self, job_id: str, *, patience_s: float | None = None) -> JobView:
        return self._get(_path(job_id), JobView, patience_s=patience_s)

    def cancel(self, job_id: str) -> JobView:
        """Wish for the job's end; returns before it comes. Idempotent."""
        return self._post(f"{_path(job_id)}/cancel", JobView, repeatable=True)

    def suspend(self, job_id: str) -> JobView:
        """Wish that the job stops at a snapshot and rests until it is resumed; returns before it does. Idempotent."""
        return self._post(f"{_path(job_id)}/suspend", JobView, repeatable=True)

    def resume(self, job_id: str) -> JobView:
        """Withdraw the suspension: the job goes back into the queue. Idempotent."""
        return self._post(f"{_path(job_id)}/resume", JobView, repeatable=True)

    def snapshot(self, job_id: str) -> JobView:
        """Wish a snapshot of the running attempt, which goes on; returns before it is taken."""
        return self._post(f"{_path(job_id)}/snapshot", JobView, repeatable=False)

    def scale(self, job_id: str, nodes: str | int) -> JobView:
        """Wish another number of nodes, or a range as "2:8"; returns before the job has them. Idempotent."""
        body = ScaleRequest(nodes=nodes).model_dump(mode="json")
        return self._post(f"{_path(job_id)}/scale", JobView, body=body, repeatable=True)

    def retry(
        self, job_id: str, *, restore_from: str | None = None, patch: Mapping[str, object] | None = None
    ) -> JobView:
        """Wish for another attempt, from a chosen snapshot, with a patched spec (RFC 7396)."""
        body = RetryRequest(restore_from=restore_from, patch=dict(patch) if patch is not None else None)
        document = body.model_dump(mode="json", exclude_none=True) if patch is None else body.model_dump(mode="json")
        return self._post(f"{_path(job_id)}/retry", JobView, body=document, repeatable=False)

    def attempts(self, job_id: str) -> Iterator[AttemptView]:
        """Oldest first."""
        return self._pages(f"{_path(job_id)}/attempts", Page[AttemptView], {})

    def events(self, job_id: str) -> Iterator[EventView]:
        """In the order of arrival."""
        return self._pages(f"{_path(job_id)}/events", Page[EventView], {})

    def events_page(self, job_id: str, *, cursor: str | None, patience_s: float | None = None) -> Page[EventView]:
        """One page; a cursor stays good for asking again what came behind it."""
        params: dict[str, str | int] = {"limit": _PAGE} | ({"cursor": cursor} if cursor else {})
        return self._get(f"{_path(job_id)}/events", Page[EventView], params, patience_s)

    def snapshots(self, job_id: str) -> Iterator[SnapshotView]:
        """Newest step first."""
        return self._pages(f"{_path(job_id)}/snapshots", Page[SnapshotView], {})

    def workers(self, job_id: str) -> Iterator[WorkerView]:
        """Of the newest attempt first."""
        return self._pages(f"{_path(job_id)}/workers", Page[WorkerView], {})

    def metrics(
        self, job_id: str, *, names: str | None = None, since_step: int | None = None, points: int | None = None
    ) -> MetricsView:
        """Down-sampled series; `names` is a comma-separated choice."""
        wanted = {"names": names, "since_step": since_step, "points": points}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._get(f"{_path(job_id)}/metrics", MetricsView, params)

    def clusters(self) -> list[ClusterView]:
        """Every configured cluster."""
        return self._get("/clusters", Page[ClusterView]).items

    def nodes(self, *, cluster: str | None = None) -> list[NodeView]:
        """Nodes with failures in their record."""
        return self._get("/nodes", Page[NodeView], None if cluster is None else {"cluster": cluster}).items

    def projects(self) -> list[ProjectView]:
        """Projects that have a quota, or jobs that are not at rest."""
        return self._get("/projects", Page[ProjectView]).items

    def logs(self, job_id: str, **which: Unpack[LogChoice]) -> str:
        """The last lines that the workers wrote."""
        return self._transport.send(_get(f"/api/v1{_path(job_id)}/logs", _chosen(which))).text

    def follow_logs(self, job_id: str, *, outage_s: float = 600, **which: Unpack[LogChoice]) -> Iterator[str]:
        """The last lines, without their ends, and each new one until the job has ended. After an outage shorter than
        `outage_s` it goes on with what was written meanwhile, up to as many lines as were shown before."""
        patience = Patience(self._transport, outage_s)
        params = _chosen(which)
        shown: deque[str] = deque(maxlen=MAX_LOG_LINES)
        while True:
            known = Counter(shown)
            try:
                for line in self._stream_lines(job_id, {**params, "tail": max(int(params["tail"]), len(shown))}):
                    patience.restart()
                    if known[line] > 0:
                        known[line] -= 1
                        continue
                    shown.append(line)
                    yield line
                if self._is_past(job_id, which.get("attempt"), outage_s):
                    return
            except ServiceUnreachable as failure:
                patience.wait(failure)

    def _is_past(self, job_id: str, attempt: int | None, outage_s: float) -> bool:
        """Whether a log that ended is complete: a service that stops ends its streams too."""
        job = self.job(job_id, patience_s=outage_s)
        if job.ended or attempt not in (None, job.attempt):
            return True
        time.sleep(0.5)
        return False

    def _stream_lines(self, job_id: str, params: Mapping[str, str | int]) -> Iterator[str]:
        path = f"/api/v1{_path(job_id)}/logs"
        with self._transport.stream(path, {**params, "follow": "true"}, read_timeout_s=_QUIET_LOG_S) as response:
            yield from response.iter_lines()

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_change: Callable[[JobView], None] | None = None,
        outage_s: float = 600,
    ) -> JobView:
        """Block until the job has ended and return it. A service away for less than `outage_s` does not matter.
        Raises WaitTimeout after `timeout_s`; the job goes on."""
        started, last = time.monotonic(), None
        while True:
            job = self.job(job_id, patience_s=outage_s)
            if on_change is not None and job != last:
                on_change(job)
            if job.ended:
                return job
            last, waited_s = job, time.monotonic() - started
            if timeout_s is not None and waited_s >= timeout_s:
                raise WaitTimeout(f"job {job_id} is {job.state} after {timeout_s:g} s: {job.reason}")
            time.sleep(0.3 if waited_s < 30 else 2.0)

    def _get(
        self,
        path: str,
        model: type[Answered],
        params: Mapping[str, str | int] | None = None,
        patience_s: float | None = None,
    ) -> Answered:
        call = _get(f"/api/v1{path}", params)
        return self._parsed(self._transport.send(call, patience_s=patience_s).content, model)

    def _post(
        self,
        path: str,
        model: type[Answered],
        *,
        repeatable: bool,
        body: object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        call = Call(method="POST", path=f"/api/v1{path}", body=body, headers=headers, repeatable=repeatable)
        return self._parsed(self._transport.send(call).content, model)

    def _pages(self, path: str, model: type[Page[Answered]], params: Mapping[str, str | int]) -> Iterator[Answered]:
        cursor: dict[str, str] = {}
        while True:
            page = self._get(path, model, {"limit": _PAGE, **params, **cursor})
            yield from page.items
            if page.next_cursor is None:
                return
            cursor = {"cursor": page.next_cursor}

    def _parsed(self, content: bytes, model: type[Answered]) -> Answered:
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.errors()[0]["loc"])
            cause = f"does not answer as an orchestrator of this version (in {where or 'the answer'})"
            raise ServiceUnreachable(self.url, cause) from error


def _get(path: str, params: Mapping[str, str | int] | None) -> Call:
    return Call(method="GET", path=path, params=params, repeatable=True)


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _document(spec: Spec) -> object:
    return spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else dict(spec)


def _chosen(which: LogChoice) -> dict[str, str | int]:
    chosen = {name: value for name, value in which.items() if isinstance(value, int)}
    return {"tail": MAX_LOG_LINES, **chosen}
