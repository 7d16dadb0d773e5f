"""All stores on one database, and shorthands for what many tests need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import event

from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.ports.supervision import Change, Supervised
from orchestrator.store.chronicle_reader import ChronicleReader
from orchestrator.store.engine import Database
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.place_reader import PlaceReader
from orchestrator.store.supervisor_store import SqlSupervisorStore
from tests.builders import NOW, make_attempt, make_event, make_job

_HOLDER = "tests"


class Stores:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.jobs = SqlJobStore(database)
        self.leases = SqlLeaseStore(database)
        self.journals = SqlJournalStore(database)
        self.reader = JobReader(database)
        self.places = PlaceReader(database)
        self.history = HistoryReader(database)
        self.chronicles = ChronicleReader(database)

    @cached_property
    def supervisor(self) -> SqlSupervisorStore:
        """Under one lease, which all stores of a test share."""
        held = [one.lease for one in self.leases.leases() if one.lease.holder == _HOLDER and not one.expired]
        lease: Lease | None = held[0] if held else self.leases.acquire("local", _HOLDER, ttl_s=3600)
        assert lease is not None
        return SqlSupervisorStore(self.database, lease)

    def add(self, job_id: str = "job-1", *, key: str | None = None, **fields: Any) -> Job:
        job = make_job(job_id, **{"owner": "alice", **fields})
        return self.jobs.add(job, idempotency_key=key, digest="d1", event=make_event("job.submitted"))

    def apply(self, job: Job, attempt: Attempt | None = None, *events: Event) -> None:
        self.supervisor.apply(Change(job=job, attempt=attempt, events=events))

    def add_with_attempt(self, job_id: str = "job-1", *, nodes: str = "4", **fields: Any) -> Job:
        job = self.add(job_id, **fields)
        self.apply(job, make_attempt(job_id, nodes=nodes))
        return job

    def ingest(self, *batches: JournalBatch) -> None:
        self.journals.ingest(batches, arrived_at=NOW)

    @contextmanager
    def recorded(self) -> Iterator[list[tuple[str, Any]]]:
        """Records the statements of a block with their parameters."""
        statements: list[tuple[str, Any]] = []

        def record(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
            statements.append((statement, parameters))

        event.listen(self.database.engine, "before_cursor_execute", record)
        try:
            yield statements
        finally:
            event.remove(self.database.engine, "before_cursor_execute", record)

    def offsets(self, job_id: str = "job-1") -> Mapping[tuple[int, int], JournalOffsets]:
        """Return the journal offsets of the first attempt."""
        key = AttemptKey(job_id, 1)
        return self.journals.offsets([key]).get(key, {})

    def only_supervised(self) -> Supervised:
        (found,) = self.supervisor.supervised("local", self.supervisor.at_work("local"))
        return found

    def events(self, job_id: str = "job-1") -> list[Event]:
        stored, _ = self.history.events(job_id, limit=100_000, cursor=None)
        return [one.event for one in stored]
