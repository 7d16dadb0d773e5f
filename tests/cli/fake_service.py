"""A small fake service with the models of `orchestrator.wire` over real HTTP. It keeps its state over restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.wire.array_views import ArrayView, MemberView
from orchestrator.wire.history_views import MetricsView, SnapshotView, StacksView
from orchestrator.wire.job_views import DeletionView, EventView, FailureView, JobView, SubmittedView
from orchestrator.wire.plans import AgainstView, MemoryView, OutlookView, PlanView, ReplicaPlanView, RungView
from orchestrator.wire.problems import FieldError, Problem
from orchestrator.wire.service import INSTANCE_HEADER, WARNING_HEADER

# What the service answers to a request, as changes of the job's view.
REQUESTS: dict[str, dict[str, object]] = {
    "cancel": {"cancelling": True, "pending": ["cancel"]},
    "suspend": {"suspended": True, "suspending": True, "pending": ["suspend"]},
    "resume": {"suspended": False, "suspending": False, "pending": []},
    "retry": {"retrying": True, "pending": ["retry"]},
    "snapshot": {"pending": ["snapshot"]},
    "scale": {"asked": "2:8", "pending": ["scale"]},
    "chaos": {"pending": ["chaos"]},
    "stacks": {"pending": ["stacks"]},
}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def make_job(job_id: str = "gpt-0001", **changes: object) -> JobView:
    document: dict[str, object] = {"name": "gpt", "run": {"script": "train.py", "workdir": "/src"}}
    values: dict[str, object] = {
        **dict.fromkeys(("finished_at", "attempt", "generation", "step", "total_steps", "loss", "tokens_per_s")),
        **dict.fromkeys(("world_size", "eta_s", "newest_snapshot", "failure")),
        "id": job_id,
        "name": "gpt",
        "project": "default",
        "cluster": "local",
        "state": JobState.QUEUED,
        "reason": "waits for its turn",
        "cancelling": False,
        "priority": 0,
        "labels": {},
        "attempts": 0,
        "created_at": AT,
        "updated_at": AT,
        "restarts": 0,
        "spec": JobSpec.model_validate(document),
    }
    return JobView.model_validate({**values, **changes})


def make_array(*states: JobState, **changes: object) -> ArrayView:
    members = [
        MemberView(
            job_id=f"lr-{index}-0000",
            index=index,
            values={"--lr": f"1e-{index}"},
            state=state,
            ended=state.terminal,
            reason="its reason",
            step=3,
            total_steps=9,
            loss=0.25,
        )
        for index, state in enumerate(states, start=1)
    ]
    fields = {"id": "lr-aaaaaaaa", "project": "default", "cluster": "local", "size": len(states), "at_once": None}
    return ArrayView.model_validate({**fields, "members": members, **changes})


def make_event(
    number: int, sentence: str, job_id: str = "gpt-0001", *, replica: int | None = None, kind: str = "job.state"
) -> EventView:
    told = {"at": AT, "kind": kind, "sentence": sentence, "attempt": 1, "generation": 1, "evidence": {}}
    return EventView.model_validate({"id": number, "job_id": job_id, "replica": replica, **told})


def make_snapshot(name: str, step: int, state: str = "committed") -> SnapshotView:
    return SnapshotView(name=name, step=step, attempt=1, generation=1, state=state, size_bytes=2048, at=AT)


def make_failure() -> FailureView:
    return FailureView(
        kind="application", message="ValueError: boom", rank=1, exit_code=1, step=7, traceback="Traceback"
    )


def make_against(job_id: str) -> AgainstView:
    return AgainstView(
        job=job_id,
        state=JobState.RUNNING,
        attempt=2,
        spec_changes=['-  "workers_per_node": 2', '+  "workers_per_node": 3'],
        request_changes=[],
        restores="step-00000010-a1-g1",
        redo_steps=4,
        redo_s=8.0,
    )


@dataclass
class Answer:
    status: int
    document: BaseModel | dict[str, object] | None = None
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class FakeService:
    """`script` has the views that the next requests for a job return; the last one is repeated."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs: dict[str, JobView] = {}
        self.script: dict[str, list[JobView]] = {}
        self.events: dict[str, list[EventView]] = {}
        self.snapshots: dict[str, list[SnapshotView]] = {}
        self.stacks: list[list[StacksView]] = [
            []
        ]  # of any job: the answers to the next requests; the last one is repeated
        self.measured: dict[str, float] = {}  # of the newest step of any job
        self.inventory: dict[str, list[dict[str, object]]] = {
            what: [] for what in ("clusters", "nodes", "projects", "webhooks", "secrets")
        }
        self.accounts: dict[str, BaseModel] = {}  # by the path below /api/v1
        self.arrays: list[ArrayView] = []  # the answers to the next requests for any array; the last one is repeated
        self.unknown_arrays: set[str] = set()
        self.native_kind, self.native_request = "processes", "text"  # of any plan
        self.wait: dict[str, object] | None = None  # of any job
        self.warning = ""  # of every answer
        self.log = ""
        self.warnings: list[str] = []  # of any submission
        self.next_view: dict[str, object] = {}  # of a submitted job
        self.keys: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str | None] = []  # the Authorization of each request
        self.instances: list[str | None] = []  # the service that each request is meant for
        self.bodies: list[dict[str, object]] = []
        self.refusals: list[Answer] = []  # given before anything else
        self.before_answer: Callable[[str], None] = lambda _: None
        self.log_ends_with_job = False  # whether a followed log ends only with the last view of its job
        self.cut_log_after: int | None = None  # characters of the next followed log, before the connection breaks
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, port: int = 0) -> str:
        service = self

        class Handler(_Handler):
            fake = service

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.root.mkdir(exist_ok=True)
        (self.root / "service.json").write_text(json.dumps({"url": self.url, "pid": 1, "version": "0"}))
        return self.url

    def stop(self) -> None:
        if self._server is not None:
            (self.root / "service.json").unlink(missing_ok=True)
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add(self, *views: JobView) -> JobView:
        """Add a job. Requests for it return these views one after the other."""
        self.jobs[views[0].id] = views[0]
        self.script[views[0].id] = list(views)
        return views[0]

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes, key: str | None) -> Answer:
        self.requests.append((method, path))
        self.queries.append(query)
        if self.refusals:
            return self.refusals.pop(0)
        parts = path.removeprefix("/api/v1/").split("/")
        if body:
            self.bodies.append(json.loads(body))
        if parts in (["jobs"], ["plan"]) and method == "POST":
            return self._submit(json.loads(body), key, plan=parts == ["plan"], against=query.get("against"))
        if parts == ["jobs"]:
            return _page(self._matching(query), query)
        if (fixed := self._fixed(parts)) is not None:
            return Answer(200, fixed)
        if parts[0] == "secrets" and method != "GET":
            stored = {"project": "p", "name": "KEY", "updated_at": AT.isoformat(), "updated_by": "alice"}
            return Answer(201, stored) if method == "POST" else Answer(204)
        if parts[0] in ("nodes", "webhooks") and method != "GET":
            made = {"name": "pager", "host": "h", "events": ["job.*"], "all_jobs": True, "secret": "whsec_x"}
            return Answer(201, made) if parts == ["webhooks"] else Answer(204)
        if method == "DELETE" and parts[0] == "jobs" and parts[1] in self.jobs:
            return Answer(200, _deleted(self.jobs.pop(parts[1]), files=query["snapshots"] == "delete"))
        if parts[0] in self.inventory:
            return Answer(200, {"items": self.inventory[parts[0]], "next_cursor": None})
        if parts[0] != "jobs" or parts[1] not in self.jobs:
            return Answer(404, Problem(type="x", title="not found", status=404, detail=f"there is no job {parts[1:]}"))
        if parts[2:] == ["stacks"] and method == "GET":
            return _page([*(self.stacks.pop(0) if len(self.stacks) > 1 else self.stacks[0])], query)
        return self._of_job(parts[1], parts[2] if len(parts) > 2 else "", query)

    def _fixed(self, parts: list[str]) -> BaseModel | None:
        if parts[0] == "arrays" and parts[1:] and parts[1] in self.unknown_arrays:
            return None
        if parts[0] == "arrays":
            return self.arrays.pop(0) if len(self.arrays) > 1 else self.arrays[0]
        return self.accounts.get("/".join(parts))

    def _of_job(self, job_id: str, what: str, query: dict[str, str]) -> Answer:
        if what == "":
            views = self.script[job_id]
            self.jobs[job_id] = views.pop(0) if len(views) > 1 else views[0]
            return Answer(200, self.jobs[job_id])
        if what in REQUESTS:
            return Answer(202, self.add(self.jobs[job_id].model_copy(update=REQUESTS[what])))
        if what == "metrics":
            series = {name: [None, value] for name, value in self.measured.items()}
            terms = {"steps": [1, 2], "at": [AT, AT], "attempts": [1, 1], "generations": [1, 1]}
            return Answer(200, MetricsView.model_validate({**terms, "series": series}))
        if what == "why":
            job = self.jobs[job_id]
            told = {"verdict": job.reason, "lost": "nothing", "next": "Nothing to do.", "wait": self.wait}
            return Answer(200, {"job": job_id, "state": job.state, "cause": None, "deeds": [], "remedy": None, **told})
        if what == "logs":
            lines = self.log.splitlines(keepends=True)
            kept = lines if query.get("whole") == "true" else lines[len(lines) - min(int(query["tail"]), len(lines)) :]
            return Answer(200, text="".join(kept))
        lists: dict[str, list[BaseModel]] = {
            "events": [*self.events.get(job_id, [])],
            "snapshots": [*self.snapshots.get(job_id, [])],
        }
        return _page(lists.get(what, []), query)

    def _matching(self, query: dict[str, str]) -> list[BaseModel]:
        return [
            job
            for job in self.jobs.values()
            if query.get("state") in (None, job.state) and query.get("q", "") in job.id + job.name
        ]

    def _submit(
        self, document: dict[str, object], key: str | None, *, plan: bool, against: str | None = None
    ) -> Answer:
        try:
            spec = parse_spec(document)
        except InvalidSpec as error:
            fields = [FieldError(pointer=problem.pointer, detail=problem.message) for problem in error.problems]
            return Answer(422, Problem(type="x", title="Fields are wrong", status=422, detail="wrong", errors=fields))
        if plan:
            replicas = [ReplicaPlanView(replica=0, command=["python", "train.py"], env={"A": "1"})]
            return Answer(
                200,
                PlanView(
                    rendezvous_id="r",
                    rendezvous_endpoint="e:1",
                    replicas=replicas,
                    native_kind=self.native_kind,
                    native_request=self.native_request,
                    appdef={},
                    memory=MemoryView(
                        strategy="ddp",
                        devices=2,
                        parameters=10,
                        terms={"optimizer": 6_000_000_000, "logits": 0, "overhead": 1_000_000_000},
                        total_bytes=7_000_000_000,
                        host_bytes=0,
                        device_bytes=None,
                        fits=None,
                        advice="about 7 GB on each of 2 devices",
                    ),
                    rungs=[RungView(name="DDP", total_bytes=7_000_000_000, fits=True)],
                    fitting="DDP",
                    restores="/runs/a/step-00000010-a1-g1",
                    outlook=OutlookView(
                        admitted=False,
                        sentence="needs 2 slots; 1 of 4 is free",
                        ahead=3,
                        total=4,
                        free=1,
                        excluded_nodes=["n7"],
                    ),
                    against=None if against is None else make_against(against),
                    warnings=["mind the gap"],
                ),
            )
        if key in self.keys:
            return Answer(200, self.jobs[self.keys[key]])
        job = make_job(
            f"{spec.name}-{len(self.jobs):04}", name=spec.name, spec=spec, labels=dict(spec.labels), **self.next_view
        )
        self.keys[str(key)] = job.id
        return Answer(201, SubmittedView(**dict(self.add(job)), warnings=self.warnings))


def _deleted(job: JobView, *, files: bool) -> DeletionView:
    return DeletionView(
        job_id=job.id,
        name=job.name,
        project=job.project,
        cluster=job.cluster,
        owner=job.owner,
        state=job.state,
        created_at=AT,
        deleted_at=AT,
        deleted_by="alice",
        files_due=files,
        folders=[f"/runs/{job.id}", f"/snapshots/{job.id}"],
    )


def _page(items: list[BaseModel], query: dict[str, str]) -> Answer:
    start, limit = int(query.get("cursor", 0)), min(int(query.get("limit", 50)), 3)  # small: clients must page
    documents = [item.model_dump(mode="json", by_alias=True) for item in items[start : start + limit]]
    more = start + limit < len(items)
    return Answer(200, {"items": documents, "next_cursor": str(start + limit) if more else None})


class _Handler(BaseHTTPRequestHandler):
    fake: FakeService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.fake.tokens.append(self.headers.get("Authorization"))
        self.fake.instances.append(self.headers.get(INSTANCE_HEADER))
        self.fake.before_answer(parts.path)
        answer = self.fake.answer(self.command, parts.path, query, body, self.headers.get("Idempotency-Key"))
        content = answer.text.encode()
        job_id = parts.path.split("/")[-2]
        while query.get("follow") and self.fake.log_ends_with_job and len(self.fake.script.get(job_id, [])) > 1:
            time.sleep(0.01)
        if isinstance(answer.document, BaseModel):
            content = answer.document.model_dump_json(by_alias=True).encode()
        elif answer.document is not None:
            content = json.dumps(answer.document).encode()
        self.send_response(answer.status)
        if self.fake.warning:
            self.send_header(WARNING_HEADER, self.fake.warning)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if query.get("follow") and self.fake.cut_log_after is not None:
            content, self.fake.cut_log_after = content[: self.fake.cut_log_after], None
        self.wfile.write(content)
