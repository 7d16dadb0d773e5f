"""The stores under test, each with what the suite needs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import select

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.jobs import JobStore
from orchestrator.ports.journals import JournalStore
from orchestrator.ports.leases import LeaseStore
from orchestrator.ports.supervision import SupervisorReader, SupervisorWriter
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.store.engine import Database
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.node_records import NodeStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.store.tables import LeaseRow
from tests.builders import NOW, make_event, make_job
from tests.fakes.memory_leases import MemoryLeaseStore


class SupervisorStore(SupervisorReader, SupervisorWriter, Protocol):
    """Reads and writes."""


class World(Protocol):
    leases: LeaseStore
    jobs: JobStore
    journals: JournalStore
    nodes: NodeStore
    threads: bool  # whether it is thread-safe

    def supervisor(self, lease: Lease) -> SupervisorStore:
        """The store under this lease."""

    def events(self, job_id: str) -> list[Event]:
        """The events of a job, in the order of arrival."""

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the leases."""


class MemoryWorld:
    threads = False

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._clock = _Clock()
        self.leases = MemoryLeaseStore(self._store, self._clock)
        self.jobs = self._store
        self.journals = self._store
        self.nodes = self._store

    def supervisor(self, lease: Lease) -> MemorySupervisorStore:
        return MemorySupervisorStore(self._store, self._clock, lease)

    def events(self, job_id: str) -> list[Event]:
        return [event for owner, event in self._store.tables.events if owner == job_id]

    def pass_time(self, seconds: float) -> None:
        self._clock.moment += timedelta(seconds=seconds)


class SqlWorld:
    threads = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self.leases = SqlLeaseStore(database)
        self.jobs = SqlJobStore(database)
        self.journals = SqlJournalStore(database)
        self.nodes = NodeStore(database)

    def supervisor(self, lease: Lease) -> SqlSupervisorStore:
        return SqlSupervisorStore(self._database, lease)

    def events(self, job_id: str) -> list[Event]:
        stored, _ = HistoryReader(self._database).events(job_id, limit=100_000, cursor=None)
        return [one.event for one in stored]

    def pass_time(self, seconds: float) -> None:
        """Make the leases and requests older by this time."""
        with self._database.write() as session:
            for row in session.scalars(select(LeaseRow)):
                row.since -= timedelta(seconds=seconds)
                row.expires_at -= timedelta(seconds=seconds)
                if row.request_expires_at is not None:
                    row.request_expires_at -= timedelta(seconds=seconds)


class _Clock:
    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


def acquire(world: World, cluster: str = "local", holder: str = "one", ttl_s: float = 100) -> Lease:
    """Acquire a lease that is free."""
    lease = world.leases.acquire(cluster, holder, ttl_s=ttl_s)
    assert lease is not None
    return lease


def add_job(world: World, job_id: str = "job-1", **fields: Any) -> Job:
    job = make_job(job_id, **fields)
    return world.jobs.add(job, idempotency_key=None, digest="d", event=make_event("job.submitted"))
