"""Assemble the service from its parts. Read `build` first."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog
from fastapi import FastAPI

from orchestrator import rundir
from orchestrator.bootstrap.application import Dependencies, build_app, build_services
from orchestrator.bootstrap.clock import SystemClock
from orchestrator.bootstrap.cluster_backends import ClusterSetup
from orchestrator.bootstrap.from_settings import endpoints_of, limits_of, retention_of
from orchestrator.bootstrap.identity import build_identity, keys_of
from orchestrator.bootstrap.machine import build_clusters, count_gpus
from orchestrator.domain.accounting.retention import Retention
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.job.worker_token import derive_worker_key
from orchestrator.domain.queueing.admission import Limits
from orchestrator.domain.queueing.lease import Lease
from orchestrator.identity.vault import Vault
from orchestrator.intake.intake import Intake
from orchestrator.intake.reception import Reception
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.jobfolder.removal import JobFolders
from orchestrator.settings import Settings
from orchestrator.store.deletion_store import DeletionStore
from orchestrator.store.engine import Database
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.retention_store import RetentionStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.lease_keeper import LeaseHolder
from orchestrator.supervisor.loop import SupervisorLoop
from orchestrator.supervisor.metered import MeteredBackend
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler
from orchestrator.supervisor.repeats import Repeats
from orchestrator.supervisor.sweep import Sweeper
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.tally import Tally
from orchestrator.telemetry.traces import Traces
from orchestrator.upkeep.housekeeping import Housekeeper
from orchestrator.upkeep.trash import TrashSweeper
from orchestrator.webhooks.outbox import Outbox

log = structlog.get_logger()
_AGENT_GRACE_S = 5.0  # beyond the agent's own stop timeout, before the service kills the agent


class Thread(Protocol):
    """A part of the service with its own thread."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    app: FastAPI
    threads: Sequence[Thread]  # in starting order; they stop in reverse order
    closing: threading.Event  # set to end the streams
    is_open: bool  # requests need no token
    has_admin: Callable[[], bool]  # whether an administrator exists who can create tokens


def build(settings: Settings, database: Database, url: str) -> Service:
    """Assemble the service. `url` is its own address."""
    clock = SystemClock()
    gpus = count_gpus()
    keys = keys_of(settings)
    setups = build_clusters(settings, gpus, derive_worker_key(keys[0]))
    clusters = {setup.cluster.name: setup.cluster for setup in setups}
    version = importlib.metadata.version("elastic-orchestrator")
    metrics = Metrics(version=version, clusters=clusters)
    reader, history = JobReader(database), HistoryReader(database)
    traces = [] if settings.otlp_url is None else [_traces(settings.otlp_url, reader, history, metrics, version)]
    database.listen(Tally(metrics).count)
    for each in traces:
        database.listen(each.enqueue)
    leases, limits = SqlLeaseStore(database), limits_of(settings)
    identity = build_identity(settings, database, clock, keys)
    vault = identity.vault
    vault.reseal()
    intake = Intake(SqlJournalStore(database), reader, clock, partial(JobFolder, settings.root), masks=vault.masks)
    reception = Reception(intake)
    keep = retention_of(settings)
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    holder = LeaseHolder(name, ttl_s=settings.lease_s)
    supervisors = [
        SupervisorLoop(
            setup.cluster.name,
            leases,
            _supervision(setup, database, settings, clock, limits, vault, metrics),
            clock,
            metrics,
            holder=holder,
            poll_s=setup.poll_s,
            tidy=_housekeeper(setup, database, clock, keep).tidy,
        )
        for setup in setups
    ]
    sweeper = TrashSweeper([setup.cluster.job_root for setup in setups])

    def wake() -> None:
        for supervisor in supervisors:
            supervisor.wake()

    closing = threading.Event()
    dependencies = Dependencies(
        clusters=clusters,
        clock=clock,
        intake=reception,
        wake=wake,
        ready=lambda: _readiness(supervisors),
        closing=closing.is_set,
        metrics=metrics,
        version=version,
    )
    services = build_services(settings, database, identity, dependencies)
    services.hooks.reseal()
    services.hooks.refresh()
    outbox = Outbox(OutboxStore(database), endpoints_of(settings), metrics, made=services.hooks.endpoints)
    app = build_app(services, clock)
    threads: Sequence[Thread] = (*traces, outbox, reception, sweeper, *supervisors)
    return Service(app, threads, closing, identity.gate.is_open, identity.tokens.any_admin)


def _traces(url: str, jobs: JobReader, history: HistoryReader, metrics: Metrics, version: str) -> Traces:
    """Build the trace exporter. Raises ConfigurationError if OpenTelemetry is not installed."""
    try:
        otlp = importlib.import_module("orchestrator.telemetry.otlp")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"ORCHESTRATOR_OTLP_URL needs OpenTelemetry ({error}): pip install 'elastic-orchestrator[otel]'"
        ) from error
    return Traces(jobs, history, otlp.OtlpExporter(url, version=version), metrics)


def _supervision(
    setup: ClusterSetup,
    database: Database,
    settings: Settings,
    clock: SystemClock,
    limits: Limits,
    vault: Vault,
    metrics: Metrics,
) -> Callable[[Lease, Callable[[], None]], Reconciler]:
    """Return a function that builds a cluster's reconciler for a lease."""
    cluster, backend = setup.cluster, MeteredBackend(setup.cluster.backend, metrics, setup.cluster.name)
    journals, reader = SqlJournalStore(database), JobReader(database)
    folders, removable = rundir.LocalRunDirectories(cluster.job_root), JobFolders(cluster.job_root)
    pass_settings = PassSettings(
        limits=replace(limits, gpus_per_node=cluster.gpus, max_jobs=cluster.max_jobs),
        stop_timeout_s=setup.stop_timeout_s + _AGENT_GRACE_S,
        submit_timeout_s=setup.submit_timeout_s,
        repeat_s=setup.repeat_s,
    )

    repeats = Repeats()

    def supervise(lease: Lease, require_lease: Callable[[], None]) -> Reconciler:
        store = SqlSupervisorStore(database, lease)
        intake = Intake(
            journals, reader, clock, cluster.folder, masks=vault.masks, between=require_lease, watches=Watches()
        )
        cooldown_s = settings.node_cooldown_s
        observer = Observer(
            cluster.name,
            store,
            backend,
            intake,
            clock,
            node_cooldown_s=cooldown_s,
            by_reports_alone=not cluster.shares_files,
            repeats=repeats,
        )
        actor = Actor(
            store, backend, folders, setup.site, ports=cluster.ports, require_lease=require_lease, secrets=vault
        )
        sweeper = Sweeper(cluster.name, DeletionStore(database), removable, require_lease=require_lease)
        return Reconciler(
            store,
            observer,
            actor,
            clock,
            pass_settings,
            sweep=sweeper.sweep,
            overlooked=metrics.overlooked_changes.labels(cluster.name).inc,
            repeats=repeats,
        )

    return supervise


def _readiness(supervisors: Sequence[SupervisorLoop]) -> tuple[bool, str]:
    states = [supervisor.alive() for supervisor in supervisors]
    return all(lives for lives, _ in states), "; ".join(words for _, words in states)


def _housekeeper(setup: ClusterSetup, database: Database, clock: SystemClock, keep: Retention) -> Housekeeper:
    return Housekeeper(setup.cluster.name, setup.cluster.job_root, RetentionStore(database), clock, keep)
