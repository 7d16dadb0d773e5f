"""The API on a real SQLite store, with a cluster that starts nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from orchestrator.api.deps import Services
from orchestrator.bootstrap.application import Dependencies, build_app, build_services
from orchestrator.bootstrap.identity import build_identity
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import LOCAL, Role
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.launch_plan import Site, build_plan
from orchestrator.domain.job.worker_token import derive_worker_key
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.ports.supervision import Change
from orchestrator.queries.tail import Tail
from orchestrator.settings import PriceSettings, ProjectSettings, Settings
from orchestrator.store.engine import Database
from orchestrator.store.event_reader import EventReader
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.store.upgrade import upgrade
from orchestrator.telemetry.metrics import Metrics
from tests.api.fakes import Client, QuietBackend, RecordingIntake, StandingClock
from tests.builders import NOW, make_attempt
from trainer.contract.failure import FailureKind

FIRST_TOKEN = "the first admin's token"
SEAL = b"c2VhbHMgc2VjcmV0cyBpbiB0ZXN0cywgMzIgYnl0ZXM="
WORKER_KEY = derive_worker_key(SEAL)
MOST_JOBS = 9  # on the cluster


@dataclass
class World:
    """A service, and methods that act as its supervisor."""

    root: Path
    workdir: Path
    database: Database
    services: Services
    app: FastAPI
    client: Client
    intake: RecordingIntake
    backend: QuietBackend
    clock: StandingClock
    woken: list[None] = field(default_factory=list)
    clusters: dict[str, Cluster] = field(default_factory=dict)

    def spec(self, **fields: Any) -> dict[str, Any]:
        return {"name": "demo", "run": {"script": "train.py", "workdir": str(self.workdir)}, **fields}

    def post_spec(self, path: str = "/api/v1/jobs", **fields: Any) -> httpx.Response:
        return self.client.post(path, json=self.spec(**fields))

    def submit(self, **fields: Any) -> str:
        answer = self.post_spec(**fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def give(self, *grants: str, name: str = "alice", **fields: Any) -> dict[str, str]:
        """The header of a new token with grants as `research=operator`."""
        pairs = (grant.partition("=") for grant in grants)
        given = {project: Role(role) for project, _, role in pairs}
        _, text = self.services.identity.tokens.create(name, given, by=LOCAL, **{"expires_at": None, **fields})
        return {"Authorization": f"Bearer {text}"}

    def store_secret(self, name: str, value: str, project: str = "default") -> None:
        self.services.identity.vault.put(project, name, value, by=LOCAL)

    def job(self, job_id: str) -> Job:
        return SqlJobStore(self.database).get(job_id)

    def advance(self, job_id: str, *states: JobState, reason: str = "moved on by a test", **fields: Any) -> Job:
        """Change the job's status as the supervisor would."""
        job = self.job(job_id)
        for state in states:
            job = job.to(state, reason=reason, now=self.clock.now())
        self.apply(replace(job, **fields))
        return job

    def start(self, job_id: str, number: int = 1, **fields: Any) -> Attempt:
        attempt = make_attempt(job_id, number, port=20000 + number, **fields)
        self.apply(self.job(job_id), attempt)
        return attempt

    def apply(self, job: Job, attempt: Attempt | None = None, marks: Sequence[NodeFailure] = ()) -> None:
        """Write a change as the supervisor would, under a new lease."""
        lease = SqlLeaseStore(self.database).acquire("local", "the test", ttl_s=60)
        assert lease is not None
        SqlSupervisorStore(self.database, lease).apply(Change(job=job, attempt=attempt, events=(), node_failures=marks))

    def blame(self, node: str, job_id: str, *, sentence: str = "it fell silent", **fields: Any) -> None:
        """Record a failure of a node."""
        key = AttemptKey(job_id, 1)
        values = {"cluster": "local", "at": self.clock.now(), "kind": FailureKind.NODE, **fields}
        mark = NodeFailure(node=node, key=key, sentence=sentence, **values)
        self.apply(self.job(job_id), marks=[mark])

    @property
    def journals(self) -> SqlJournalStore:
        return SqlJournalStore(self.database)

    def write_log(self, job_id: str, text: str | bytes, where: str = "1/g1/local-0/log", attempt: int = 1) -> Path:
        """Put a log at attempts/<attempt>/replica-0/<where>, or at a path from the attempt's folder."""
        below = where if where.startswith("replica-") else f"replica-0/{where}"
        path = self.root / job_id / "attempts" / str(attempt) / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api-template") / "orchestrator.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def world(tmp_path: Path, empty_database: Path) -> Iterator[World]:
    shutil.copy(empty_database, tmp_path / "orchestrator.db")
    database = Database(f"sqlite:///{tmp_path / 'orchestrator.db'}")
    built = build_world(tmp_path, database)
    yield built
    built.client.close()
    database.dispose()


@pytest.fixture
def closed(tmp_path: Path, empty_database: Path) -> Iterator[World]:
    """The same service, with tokens required."""
    shutil.copy(empty_database, tmp_path / "orchestrator.db")
    database = Database(f"sqlite:///{tmp_path / 'orchestrator.db'}")
    built = build_world(tmp_path, database, first=FIRST_TOKEN)
    yield built
    built.client.close()
    database.dispose()


@pytest.fixture
def client(world: World) -> Client:
    return world.client


@pytest.fixture(scope="session")
def document(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> dict[str, Any]:
    """The OpenAPI document. It is the same for every service."""
    database = Database(f"sqlite:///{empty_database}")
    built = build_world(tmp_path_factory.mktemp("document"), database)
    found: dict[str, Any] = built.client.get("/openapi.json").json()
    built.client.close()
    database.dispose()
    return found


def build_world(
    folder: Path,
    database: Database,
    *,
    first: str | None = None,
    closing: Callable[[], bool] = lambda: False,
) -> World:
    """Build the service as `serve` does, but without caches, so that a test sees a direct write to the store at once.

    With a `first` token, every caller needs one.
    """
    root, workdir = folder / "root", folder / "work"
    root.mkdir()
    workdir.mkdir()
    (workdir / "train.py").write_text("print('training')\n")
    settings = Settings(
        root=root,
        token=None if first is None else SecretStr(first),
        allowed_hosts=("localhost",),
        prices=PriceSettings(currency="EUR", device_hour=2.0),
        projects={"research": ProjectSettings(max_jobs=2, max_devices=8)},
    )
    backend, intake, clock = QuietBackend(), RecordingIntake(), StandingClock(NOW)
    woken: list[None] = []
    clusters = {"local": _build_cluster(root, backend)}
    around = Dependencies(
        clusters=clusters,
        clock=clock,
        intake=intake,
        wake=lambda: woken.append(None),
        ready=lambda: (True, "all is well"),
        closing=closing,
        metrics=Metrics(),
        version="1.2.3",
    )
    identity = build_identity(settings, database, clock, [SEAL], monotonic=_always_later())
    services = build_services(settings, database, identity, around)
    services = replace(services, tail=Tail(EventReader(database), every_s=0))
    app = build_app(services, clock)
    return World(root, workdir, database, services, app, Client(app), intake, backend, clock, woken, clusters)


def _always_later() -> Callable[[], float]:
    """Return a clock that advances 1000 s per reading, so every cache entry has expired."""
    return count(step=1000.0).__next__


def _build_cluster(root: Path, backend: QuietBackend) -> Cluster:
    site = Site(
        root=root,
        python="/usr/bin/python3",
        child="/opt/child.py",
        rendezvous_host="127.0.0.1",
        gpus_per_node=0,
        report_url="http://127.0.0.1:8700/api/v1/reports",
        stop_timeout_s=10,
        log_limit_bytes=1_000_000,
    )
    return Cluster(
        name="local",
        kind="local",
        backend=backend,
        job_root=root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=range(20000, 20010),
        gpus=0,
        max_jobs=MOST_JOBS,
    )
