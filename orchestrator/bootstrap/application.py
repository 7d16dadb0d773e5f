"""Build what answers requests: commands, queries, the API and the pages, on one database.

The caller passes the clusters, the clock and the threads. `service.py` passes the real ones, and tests pass their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from orchestrator.api.app import create_app
from orchestrator.api.deps import Identity, Services
from orchestrator.bootstrap.from_settings import endpoints_of, limits_of, prices_of, webhook_views_of
from orchestrator.bootstrap.identity import hosts_of
from orchestrator.commands.checks import Checks
from orchestrator.commands.deletions import Deletions
from orchestrator.commands.job_commands import Commands
from orchestrator.commands.nodes import NodeRecords
from orchestrator.commands.plans import Plans
from orchestrator.configured_cluster import Cluster
from orchestrator.dashboard.pages import render_problem
from orchestrator.dashboard.views import build_page_routes, build_pages
from orchestrator.intake.reception import Reception
from orchestrator.logs.feed import Feeds
from orchestrator.logs.reader import Logs
from orchestrator.ports.clock import Clock
from orchestrator.queries.accounts import Accounts
from orchestrator.queries.inventory import Inventory
from orchestrator.queries.job_queries import Queries
from orchestrator.queries.job_resources import Resources
from orchestrator.queries.tail import Tail
from orchestrator.queries.usage import Usage
from orchestrator.queries.waits import Waits
from orchestrator.settings import Settings
from orchestrator.store.change_marks import ChangeMarks
from orchestrator.store.chronicle_reader import ChronicleReader
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.deletion_store import DeletionStore
from orchestrator.store.engine import Database
from orchestrator.store.event_reader import EventReader
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.node_records import NodeStore
from orchestrator.store.webhook_store import WebhookStore
from orchestrator.telemetry.metrics import Metrics
from orchestrator.webhooks.hooks import Hooks, is_proxied
from orchestrator.wire.service import name_instance

_MEANWHILE = (
    "Running jobs continue. Until the service can write again, it may show old data, and it accepts no new jobs and no "
    "requests."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The parts that the application uses but does not build."""

    clusters: Mapping[str, Cluster]
    clock: Clock
    intake: Reception
    wake: Callable[[], None]  # wakes the supervisors after a request
    ready: Callable[[], tuple[bool, str]]
    closing: Callable[[], bool]
    metrics: Metrics
    version: str


def build_services(settings: Settings, database: Database, identity: Identity, given: Dependencies) -> Services:
    clusters, clock, vault = given.clusters, given.clock, identity.vault
    reader, history, jobs = JobReader(database), HistoryReader(database), SqlJobStore(database)
    chronicles, deletions, cluster_reader = ChronicleReader(database), DeletionStore(database), ClusterReader(database)
    logs = Logs(reader, history, clusters, mask_of=vault.mask_of_project)
    resources = Resources(reader, history, clusters, clock)
    hooks = Hooks(
        WebhookStore(database),
        vault,
        clock,
        configured=[endpoint.webhook for endpoint in endpoints_of(settings)],
        private_hosts=settings.private_storage_hosts,
        subscribe=database.subscribe,
        is_proxied=is_proxied,
    )
    checks = Checks(
        jobs=jobs,
        clusters=clusters,
        webhooks=hooks,
        secrets=vault.names,
        private_hosts=settings.private_storage_hosts,
        deleted=deletions,
    )
    inventory = Inventory(
        cluster_reader,
        SqlLeaseStore(database),
        clusters,
        clock,
        limits=limits_of(settings),
        node_cooldown_s=settings.node_cooldown_s,
    )
    waits = Waits(reader=cluster_reader, jobs=reader, clusters=clusters, limits=limits_of(settings))
    return Services(
        deletions=Deletions(deletions, jobs, reader, clusters, clock, given.wake),
        nodes=NodeRecords(NodeStore(database), cluster_reader, clock, given.wake, cooldown_s=settings.node_cooldown_s),
        commands=Commands(jobs, reader, checks, clock, given.wake, history=history),
        plans=Plans(reader, checks),
        queries=Queries(reader, history, ChangeMarks(database)),
        accounts=Accounts(
            chronicles, logs, resources, clock, prices_of(settings), exclusions=inventory.exclusions, waits=waits
        ),
        resources=resources,
        usage=Usage(chronicles, clock, prices_of(settings)),
        inventory=inventory,
        identity=identity,
        intake=given.intake,
        logs=logs,
        feeds=Feeds(logs),
        ready=given.ready,
        trouble=lambda: describe_write_failure(database),
        tail=Tail(EventReader(database)),
        metrics=given.metrics,
        version=given.version,
        instance=name_instance(settings.root),
        hooks=hooks,
        webhooks=webhook_views_of(settings),
        hosts=hosts_of(settings),
        closing=given.closing,
    )


def describe_write_failure(database: Database) -> str | None:
    """Return what a database that cannot be written means for people. None while it can be."""
    if database.write_failure is None:
        return None
    cause = database.write_failure.replace(database.name, str(database.file or database.name))
    return f"The service cannot write its {cause}. {_MEANWHILE}"


def build_app(services: Services, clock: Clock) -> FastAPI:
    app = create_app(services, pages=build_page_routes(), problem_page=render_problem)
    app.state.pages = build_pages(services, clock)
    return app
