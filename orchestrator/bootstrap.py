"""Wires the service: the only module that names adapters."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog
from fastapi import FastAPI

from orchestrator import rundir
from orchestrator.api.app import create_app
from orchestrator.api.deps import Services
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.clusters import Cluster
from orchestrator.commands import Commands
from orchestrator.dashboard.pages import render_problem
from orchestrator.dashboard.views import build_router
from orchestrator.domain.admission import Limits, Quota
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.launch import Site, build_plan
from orchestrator.domain.lease import Lease
from orchestrator.domain.webhook import Webhook
from orchestrator.intake import Intake
from orchestrator.inventory import Inventory
from orchestrator.logs import Logs
from orchestrator.outbox import Endpoint, Outbox
from orchestrator.queries import Queries
from orchestrator.reception import Reception
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.clusters import SqlClusterReader
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.history import SqlHistoryReader
from orchestrator.store.jobs import SqlJobStore
from orchestrator.store.journals import SqlJournalStore
from orchestrator.store.leases import SqlLeaseStore
from orchestrator.store.outbox import SqlOutboxStore
from orchestrator.store.readers import SqlJobReader
from orchestrator.store.sqlite import ServiceLock
from orchestrator.store.supervision import SqlSupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.loop import SupervisorLoop
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler, Terms
from orchestrator.telemetry import Metrics
from orchestrator.wire import WebhookView

log = structlog.get_logger()

_SUBMIT_TIMEOUT_S = 1.0  # a start of processes on this machine is over at once, or it did not happen
_AGENT_GRACE_S = 5.0  # beyond the agent's own stop time-out, before we use force


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


class Thread(Protocol):
    """A part of the service that works on its own."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    app: FastAPI
    threads: Sequence[Thread]  # in the order in which they start; they stop in the opposite one
    closing: threading.Event  # set: streams end


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
        gpu_type=_gpu_type(),
    )
    reader, history = SqlJobReader(database), SqlHistoryReader(database)
    leases, limits = SqlLeaseStore(database), _limits(settings, gpus)
    intake = Intake(SqlJournalStore(database), reader, clock, lambda job_id: settings.root / job_id)
    reception = Reception(intake)
    terms = Terms(
        limits=limits,
        stop_timeout_s=settings.stop_timeout_s + _AGENT_GRACE_S,
        submit_timeout_s=_SUBMIT_TIMEOUT_S,
    )

    folders = rundir.LocalRunDirectories(settings.root)

    def supervise(lease: Lease, in_office: Callable[[], None]) -> Reconciler:
        store = SqlSupervisorStore(database, lease)
        cooldown_s = settings.node_cooldown_s
        observer = Observer(cluster.name, store, backend, intake, clock, node_cooldown_s=cooldown_s)
        actor = Actor(store, backend, folders, site, ports=ports, in_office=in_office)
        return Reconciler(store, observer, actor, clock, terms)

    supervisor = SupervisorLoop(
        cluster.name,
        leases,
        supervise,
        clock,
        metrics,
        holder=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        poll_s=settings.poll_s,
        lease_s=settings.lease_s,
    )
    outbox = Outbox(SqlOutboxStore(database), _endpoints(settings), metrics)
    closing = threading.Event()
    services = Services(
        commands=Commands(
            SqlJobStore(database), reader, {cluster.name: cluster}, clock, supervisor.wake, webhooks=settings.webhooks
        ),
        queries=Queries(reader, history),
        inventory=Inventory(
            SqlClusterReader(database),
            leases,
            {cluster.name: cluster},
            clock,
            limits=limits,
            node_cooldown_s=settings.node_cooldown_s,
        ),
        intake=reception,
        logs=Logs(reader, history, {cluster.name: cluster}),
        ready=supervisor.alive,
        metrics=metrics,
        version=importlib.metadata.version("elastic-orchestrator"),
        webhooks=_webhook_views(settings),
        hosts=(settings.host,),
        closing=closing.is_set,
    )
    pages = build_router(services.queries, services.inventory, services.commands, services.logs, clock)
    app = create_app(services, pages=[pages], problem_page=render_problem)
    return Service(app, (outbox, reception, supervisor), closing)


def upgrade_database(settings: Settings) -> str:
    """Bring the database's tables up to date; returns its name. Raises ConfigurationError, StoreUnavailable."""
    url = settings.resolved_database_url
    settings.root.mkdir(parents=True, exist_ok=True)
    schema.upgrade(url)
    return parse_url(url).render_as_string(hide_password=True)


def check_database(settings: Settings) -> None:
    """Raises SchemaMismatch unless the tables are of this version."""
    schema.check(settings.resolved_database_url)


@contextlib.contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
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
        database = Database(url, subscriptions=[endpoint.webhook for endpoint in _endpoints(settings)])
        stack.callback(database.dispose)
        yield database


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
        failure_patterns=tuple(each.pattern() for each in settings.failure_patterns),
    )


def _limits(settings: Settings, gpus: int) -> Limits:
    quotas = {
        name: Quota(max_jobs=project.max_jobs, max_devices=project.max_devices)
        for name, project in settings.projects.items()
    }
    return Limits(gpus_per_node=gpus, max_jobs=settings.max_jobs, quotas=quotas)


def _endpoints(settings: Settings) -> list[Endpoint]:
    """Raises ConfigurationError for a secret that is not there."""
    return [
        Endpoint(webhook=Webhook(name=name, events=one.events, all_jobs=one.all_jobs), url=one.url, key=one.read_key())
        for name, one in sorted(settings.webhooks.items())
    ]


def _webhook_views(settings: Settings) -> list[WebhookView]:
    return [
        WebhookView(name=name, host=one.host, events=list(one.events), all_jobs=one.all_jobs)
        for name, one in sorted(settings.webhooks.items())
    ]


def _trainer_folder() -> Path:
    found = importlib.util.find_spec("trainer")
    if found is None or found.origin is None:
        raise ConfigurationError("the package `trainer` is not installed beside the service")
    return Path(found.origin).parent


def _gpu_type() -> str | None:
    """Their model, where all have the same (NVIDIA driver README, /proc/driver/nvidia/gpus)."""
    told = (path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = {line.partition(":")[2].strip() for text in told for line in text.splitlines() if line.startswith("Model")}
    return models.pop() if len(models) == 1 else None


def _gpu_count() -> int:
    """NVIDIA devices of this machine, as the driver lists them."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())
