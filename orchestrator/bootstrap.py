"""Wires the service: the only module that names adapters."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from orchestrator import rundir
from orchestrator.api.app import create_app
from orchestrator.api.deps import Services
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.clusters import Cluster
from orchestrator.commands import Commands
from orchestrator.dashboard.pages import render_problem
from orchestrator.dashboard.views import build_router
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.launch import Site, build_plan
from orchestrator.intake import Intake
from orchestrator.logs import Logs
from orchestrator.queries import Queries
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.history import SqlHistoryReader
from orchestrator.store.jobs import SqlJobStore
from orchestrator.store.journals import SqlJournalStore
from orchestrator.store.readers import SqlJobReader
from orchestrator.store.sqlite import ServiceLock
from orchestrator.store.supervision import SqlSupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.loop import SupervisorLoop
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler
from orchestrator.telemetry import Metrics, configure_logging

log = structlog.get_logger()

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_AGENT_GRACE_S = 5.0  # beyond the agent's own stop time-out, before we use force


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


class _Server(uvicorn.Server):
    """Tells streams of a shutdown when it begins: uvicorn waits for them before the application hears of it.

    Uvicorn would end the process by the signal it caught; here the supervisor finishes its pass first.
    """

    def __init__(self, config: uvicorn.Config, closing: threading.Event) -> None:
        super().__init__(config)
        self._closing = closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing.set()
        super().handle_exit(sig, frame)


@dataclass(frozen=True, slots=True)
class Service:
    app: FastAPI
    supervisor: SupervisorLoop
    closing: threading.Event  # set: streams end


def serve(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT; running jobs go on without it. Raises ConfigurationError."""
    configure_logging()
    settings = _checked(settings)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(_database(settings))
        listener = stack.enter_context(_listener(settings))
        url = f"http://{_bracketed(settings.host)}:{listener.getsockname()[1]}"
        service = build(settings, database, url)
        service.supervisor.start()
        stack.callback(service.supervisor.stop)
        stack.enter_context(_announced(settings.root, url))
        print(f"orchestrator is at {url}, run directory {settings.root}", flush=True)
        config = uvicorn.Config(service.app, log_config=None, timeout_graceful_shutdown=5)
        _Server(config, service.closing).run(sockets=[listener])


def build(settings: Settings, database: Database, url: str) -> Service:
    """Put the parts together. `url` is where this service listens."""
    clock, metrics = SystemClock(), Metrics()
    gpus = _gpu_count()
    site = _site(settings, gpus)
    ports = range(settings.rendezvous_ports[0], settings.rendezvous_ports[1] + 1)
    backend = LocalBackend(settings.root, slots=settings.local_slots)
    cluster = Cluster(
        name="local",
        kind="local",
        backend=backend,
        job_root=settings.root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=ports,
        gpus=gpus,
    )
    reader, history = SqlJobReader(database), SqlHistoryReader(database)
    store = SqlSupervisorStore(database)
    intake = Intake(SqlJournalStore(database), reader, clock, lambda job_id: settings.root / job_id)
    reconciler = Reconciler(
        store,
        Observer(cluster.name, store, backend, intake),
        Actor(store, backend, site, ports=ports),
        clock,
        gpus_per_node=gpus,
        stop_timeout_s=settings.stop_timeout_s + _AGENT_GRACE_S,
    )
    supervisor = SupervisorLoop(cluster.name, reconciler, clock, metrics, poll_s=settings.poll_s)
    closing = threading.Event()
    services = Services(
        commands=Commands(SqlJobStore(database), {cluster.name: cluster}, clock, supervisor.wake),
        queries=Queries(reader, history),
        intake=intake,
        logs=Logs(reader, history, {cluster.name: cluster}),
        ready=supervisor.alive,
        metrics=metrics,
        version=importlib.metadata.version("elastic-orchestrator"),
        hosts=(settings.host,),
        closing=closing.is_set,
    )
    pages = build_router(services.queries, services.commands, services.logs, clock)
    return Service(create_app(services, pages=[pages], problem_page=render_problem), supervisor, closing)


def upgrade_database(settings: Settings) -> str:
    """Bring the database's tables up to date; returns its name. Raises ConfigurationError, StoreUnavailable."""
    url = settings.resolved_database_url
    settings.root.mkdir(parents=True, exist_ok=True)
    schema.upgrade(url)
    return parse_url(url).render_as_string(hide_password=True)


def check_database(settings: Settings) -> None:
    """Raises SchemaMismatch unless the tables are of this version."""
    schema.check(settings.resolved_database_url)


def _checked(settings: Settings) -> Settings:
    """Settings with an absolute root that can be written. Raises ConfigurationError."""
    if settings.host not in _LOOPBACK:
        raise ConfigurationError(
            f"ORCHESTRATOR_HOST is {settings.host}: this version signs nobody in and serves loopback only; "
            "reach it from elsewhere through an SSH tunnel"
        )
    low, high = settings.rendezvous_ports
    if not 1024 <= low <= high <= 65535:
        raise ConfigurationError(f"ORCHESTRATOR_RENDEZVOUS_PORTS is {low}, {high}: not a range within 1024 .. 65535")
    root = settings.root.expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        root = root.resolve()
        rundir.write_document(root / ".writable", {})
        (root / ".writable").unlink()
    except OSError as error:
        raise ConfigurationError(f"the run directory {root} cannot be written: {error.strerror}") from error
    return settings.model_copy(update={"root": root})


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    """The database, of our version, and with SQLite for this process alone."""
    url = settings.resolved_database_url
    file = sqlite_file(parse_url(url))
    with contextlib.ExitStack() as stack:
        if file is not None:
            lock = ServiceLock(file)
            lock.acquire()
            stack.callback(lock.release)
            if schema.is_empty(url):
                schema.upgrade(url)
        schema.check(url)
        database = Database(url)
        stack.callback(database.dispose)
        yield database


@contextlib.contextmanager
def _listener(settings: Settings) -> Iterator[socket.socket]:
    """A bound socket: port 0 becomes a free one. Raises ConfigurationError for a port that is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)  # whoever reads the announcement may connect at once
        yield listener
    except OSError as error:
        raise ConfigurationError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): "
            "set ORCHESTRATOR_PORT to another one, or to 0 for any free one"
        ) from error
    finally:
        listener.close()


@contextlib.contextmanager
def _announced(root: Path, url: str) -> Iterator[None]:
    """`service.json` while the service runs, so that clients on this machine find it."""
    version = importlib.metadata.version("elastic-orchestrator")
    rundir.write_document(root / "service.json", {"url": url, "pid": os.getpid(), "version": version})
    try:
        yield
    finally:
        (root / "service.json").unlink(missing_ok=True)


def _site(settings: Settings, gpus: int) -> Site:
    return Site(
        root=settings.root,
        python=sys.executable,
        child=str(_trainer_folder() / "elastic" / "child.py"),
        rendezvous_host="127.0.0.1",
        gpus_per_node=gpus,
        report_url=None if settings.advertise_url is None else f"{settings.advertise_url.rstrip('/')}/api/v1/reports",
        stop_timeout_s=settings.stop_timeout_s,
        log_limit_bytes=int(settings.log_limit_mb * 1024 * 1024),
    )


def _trainer_folder() -> Path:
    found = importlib.util.find_spec("trainer")
    if found is None or found.origin is None:
        raise ConfigurationError("the package `trainer` is not installed beside the service")
    return Path(found.origin).parent


def _gpu_count() -> int:
    """NVIDIA devices of this machine, as the driver lists them."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
