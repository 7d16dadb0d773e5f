"""The store in memory, as commands and intake see it. Each call checks everything before it changes anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from orchestrator.domain.errors import Conflict, NotFound, StoreUnavailable
from orchestrator.domain.explanation.row_limits import Launch
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.dependents import Needs
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.jobs import JobStanding, Requested
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from orchestrator.simulator.memory_tables import Tables, ingest


class MemoryStore:
    """Implements ports.JournalStore, JobStore and JobLookup. While `available` is False, calls fail."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.available = True

    def answering(self) -> Tables:
        """Return the tables. Raises StoreUnavailable."""
        if not self.available:
            raise StoreUnavailable("the store does not answer")
        return self.tables

    def clear(self, cluster: str, node: str, *, at: datetime, by: str) -> None:
        self.answering().cleared[cluster, node] = at

    # ports.JournalStore

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        journals = self.answering().journals
        return {key: {life: row.offsets for life, row in journals[key].items()} for key in keys if key in journals}

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        """Store batches, without limits on what is stored of a job."""
        tables = self.answering()
        for batch in batches:
            if batch.key not in tables.summaries:
                raise NotFound(f"there is no attempt {batch.key}")
        refused = {place: why for place, batch in enumerate(batches) if (why := _refusal(tables, batch)) is not None}
        for place, batch in enumerate(batches):
            if place not in refused:
                ingest(tables, batch, arrived_at)
        return refused

    # ports.JobStore and JobLookup

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        key = None if idempotency_key is None or job.owner is None else (job.spec.project, job.owner, idempotency_key)
        first = None if key is None else self.repeated(*key, digest)
        if first is not None:
            return first
        tables = self.answering()
        if job.id in tables.jobs:
            raise Conflict(f"there is a job {job.id} already")
        tables.put_job(job)
        if key is not None:
            tables.keys[key] = (digest, job.id)
        tables.events.append((job.id, event))
        return job

    def repeated(self, project: str, owner: str, idempotency_key: str, digest: str) -> Job | None:
        known = self.answering().keys.get((project, owner, idempotency_key))
        if known is not None and known[0] != digest:
            raise Conflict(f"Idempotency-Key {idempotency_key!r} was used for job {known[1]} with another body")
        return None if known is None else self.tables.jobs[known[1]]

    def get(self, job_id: str) -> Job:
        return self.answering().job(job_id)

    def record_request(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> bool:
        tables = self.answering()
        job = tables.job(job_id)
        if job.desired.number != desired.number - 1:
            return False
        tables.put_job(replace(job, desired=desired, spec=spec or job.spec))
        tables.events.append((job_id, event))
        return True

    def standing(self, job_id: str) -> JobStanding:
        tables = self.answering()
        attempt = tables.attempt_of(job_id)
        return JobStanding(
            job=tables.job(job_id),
            attempt=attempt,
            training=Training() if attempt is None else tables.summaries[attempt.key].training(),
            attempts=0 if attempt is None else attempt.key.number,
            world_size=None,
            loss=None,
            tokens_per_s=None,
            newest_snapshot=None,
        )

    def requested(self, job_ids: Collection[str]) -> Mapping[str, Requested]:
        tables = self.answering()
        return {job_id: _requested(tables, job_id) for job_id in job_ids if job_id in tables.jobs}

    def dependents(self, job_id: str) -> list[Needs]:
        specs = {job.id: job.spec for job in self.answering().jobs.values() if not job.at_rest}
        return [Needs(job_id=name, after=spec.after, source=spec.snapshot.source) for name, spec in specs.items()]

    def attempts_of(self, job_id: str) -> list[Attempt]:
        """Return a job's attempts, oldest first."""
        numbers = range(1, self.tables.newest.get(job_id, 0) + 1)
        return [self.tables.attempts[AttemptKey(job_id, number)] for number in numbers]


def _refusal(tables: Tables, batch: JournalBatch) -> str | None:
    attempt = tables.attempts[batch.key]
    return Launch(batch.key, attempt.max_nodes, attempt.workers_per_node).refusal(batch.replica, batch.incarnation)


def _requested(tables: Tables, job_id: str) -> Requested:
    newest = tables.attempt_of(job_id)
    return Requested(
        desired=tables.jobs[job_id].desired,
        newest=None if newest is None else newest.key.number,
        stopping=newest is not None and (newest.stopping_since or newest.ended_at) is not None,
    )
