"""A store in memory: the ports of supervisor, intake and write side. A transaction happens whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from orchestrator.domain.attempt import Attempt, AttemptKey
from orchestrator.domain.errors import Conflict, Refused, StoreUnavailable
from orchestrator.domain.event import Event
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.observation import Training
from orchestrator.domain.spec import JobSpec
from orchestrator.ports import Change, JobFilter, JobStanding, JournalBatch, JournalOffsets, Supervised
from orchestrator.simulator.tables import Tables, exits_of, ingest
from orchestrator.simulator.told import Told


class MemoryStore:
    """Implements ports.SupervisorStore, JournalStore, JobStore and JobReader. `available` False: it does not answer."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.available = True

    # The supervisor's side

    def supervised(self, cluster: str) -> Sequence[Supervised]:
        """Oldest job first."""
        tables = self._answering()
        jobs = [job for job in tables.jobs.values() if job.spec.cluster == cluster and _not_at_rest(job)]
        return [self._supervised(job) for job in sorted(jobs, key=lambda job: (job.created_at, job.id))]

    def apply(self, change: Change) -> None:
        with self._transaction() as tables:
            known = tables.job(change.job.id)
            # Status only: what was asked and wished has another writer.
            tables.jobs[known.id] = replace(
                change.job,
                spec=known.spec,
                desired=known.desired,
                created_at=known.created_at,
                spent=dict(change.job.spent),
            )
            if change.attempt is not None:
                tables.attempts[change.attempt.key] = change.attempt
                tables.told.setdefault(change.attempt.key, Told())
                if change.attempt.state.terminal:
                    tables.ports.pop(change.attempt.key, None)
            tables.events += [(known.id, event) for event in change.events]

    def note(self, job_id: str, reason: str, now: datetime) -> None:
        with self._transaction() as tables:
            if job_id in tables.jobs:
                tables.jobs[job_id] = replace(tables.jobs[job_id], reason=reason, updated_at=now)

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        with self._transaction() as tables:
            tables.job(key.job_id)
            if key in tables.ports:
                return tables.ports[key][1]
            taken = {port for place, port in tables.ports.values() if place == cluster}
            above = [port for port in candidates if after is None or port > after]
            below = [port for port in candidates if after is not None and port <= after]
            free = next((port for port in (*above, *below) if port not in taken), None)
            if free is None:
                raise Refused(f"cluster {cluster}: all {len(candidates)} rendezvous ports are taken")
            tables.ports[key] = (cluster, free)
            return free

    # Intake's side

    def offsets(self, key: AttemptKey) -> Mapping[tuple[int, int], JournalOffsets]:
        journals = self._answering().journals.items()
        return {(replica, life): row.offsets for (of, replica, life), row in journals if of == key}

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> None:
        with self._transaction() as tables:
            for batch in batches:
                ingest(tables, batch, arrived_at)

    # The write side's and the readers' side

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        if idempotency_key is not None:
            first = self.repeated(job.spec.project, idempotency_key, digest)
            if first is not None:
                return first
        with self._transaction() as tables:
            if job.id in tables.jobs:
                raise Conflict(f"there is a job {job.id} already")
            tables.jobs[job.id] = job
            if idempotency_key is not None:
                tables.keys[job.spec.project, idempotency_key] = (digest, job.id)
            tables.events.append((job.id, event))
        return job

    def repeated(self, project: str, idempotency_key: str, digest: str) -> Job | None:
        known = self._answering().keys.get((project, idempotency_key))
        if known is not None and known[0] != digest:
            raise Conflict(f"Idempotency-Key {idempotency_key!r} was used for job {known[1]} with another body")
        return None if known is None else self.tables.jobs[known[1]]

    def get(self, job_id: str) -> Job:
        return self._answering().job(job_id)

    def wish(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> None:
        with self._transaction() as tables:
            job = tables.job(job_id)
            tables.jobs[job_id] = replace(job, desired=desired, spec=spec or job.spec)
            tables.events.append((job_id, event))

    def standings(
        self, where: JobFilter, *, limit: int, cursor: str | None, newest_first: bool = True
    ) -> tuple[Sequence[JobStanding], str | None]:
        """One page with all of them; of the filter, state and cluster count."""
        if cursor is not None:
            raise Refused("the simulator has one page only")
        jobs = sorted(self._answering().jobs.values(), key=lambda job: (job.created_at, job.id), reverse=newest_first)
        wanted = [job for job in jobs if where.state in (None, job.state) and where.cluster in (None, job.spec.cluster)]
        return [self.standing(job.id) for job in wanted[:limit]], None

    def standing(self, job_id: str) -> JobStanding:
        seen = self._supervised(self.get(job_id))
        return JobStanding(
            job=seen.job,
            attempt=seen.attempt,
            training=seen.training,
            attempts=0 if seen.attempt is None else seen.attempt.key.number,
            world_size=None,
            loss=None,
            tokens_per_s=None,
            newest_snapshot=None,
        )

    def count_by_state(self) -> Mapping[JobState, int]:
        states = [job.state for job in self._answering().jobs.values()]
        return {state: states.count(state) for state in set(states)}

    def attempts_of(self, job_id: str) -> list[Attempt]:
        """Oldest first."""
        found = [attempt for key, attempt in self.tables.attempts.items() if key.job_id == job_id]
        return sorted(found, key=lambda attempt: attempt.key.number)

    def _supervised(self, job: Job) -> Supervised:
        attempt = max(self.attempts_of(job.id), key=lambda each: each.key.number, default=None)
        if attempt is None:
            return Supervised(job=job, attempt=None, training=Training(), exits={})
        training = self.tables.told[attempt.key].training
        return Supervised(job=job, attempt=attempt, training=training, exits=exits_of(self.tables, attempt.key))

    def _answering(self) -> Tables:
        if not self.available:
            raise StoreUnavailable("the store does not answer")
        return self.tables

    @contextmanager
    def _transaction(self) -> Iterator[Tables]:
        work = self._answering().copy()
        yield work
        self.tables = work


def _not_at_rest(job: Job) -> bool:
    return not job.state.terminal or job.desired.retry_number > job.retries_done
