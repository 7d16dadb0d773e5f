"""The store in memory, as the supervisor sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime

from orchestrator.domain.errors import InvalidTransition, LeaseLost, Refused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.membership import Members, read_members
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import Training, parse_replicas
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.clock import Clock
from orchestrator.ports.supervision import Change, Journaled, Supervised
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_tables import Tables, exits_of
from trainer.contract.exit_record import EventKind, Outcome

_NO_TRAINING = Training()


class MemorySupervisorStore:
    """Implements ports.SupervisorReader, and ports.SupervisorWriter under one lease."""

    def __init__(self, store: MemoryStore, clock: Clock, lease: Lease) -> None:
        self._store = store
        self._clock = clock
        self._lease = lease

    def changed(self, since: int | None) -> tuple[Set[str], int]:
        events = self._store.answering().events
        return {job_id for job_id, _ in events[len(events) if since is None else since :]}, len(events)

    def at_work(self, cluster: str) -> Set[str]:
        tables = self._store.answering()
        return {job_id for job_id in tables.at_work if tables.jobs[job_id].spec.cluster == cluster}

    def supervised(self, cluster: str, among: Set[str]) -> Sequence[Supervised]:
        tables = self._store.answering()
        here = [job for job_id in tables.at_work & among if (job := tables.jobs[job_id]).spec.cluster == cluster]
        return [_supervised(tables, job) for job in sorted(here, key=lambda job: (job.created_at, job.id))]

    def apply(self, change: Change) -> None:
        tables = self._writing()
        known, attempt = tables.job(change.job.id), change.attempt
        before = None if attempt is None else tables.attempts.get(attempt.key)
        if before is not None and before.state.terminal:
            raise InvalidTransition(f"attempt {before.key} has ended {before.state} and cannot change")
        # Commands write the other fields.
        kept = {"spec": known.spec, "desired": known.desired, "created_at": known.created_at}
        tables.put_job(replace(change.job, spent=dict(change.job.spent), **kept))  # type: ignore[arg-type]
        if attempt is not None:
            tables.put_attempt(attempt)
        if change.job.state.terminal:
            for key in [key for key in tables.ports if key.job_id == known.id]:
                del tables.ports[key]
        for mark in change.node_failures:
            tables.node_failures.setdefault((mark.cluster, mark.node, mark.key), mark)
        tables.events += [(known.id, event) for event in change.events]

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        tables = self._writing()
        for job_id, reason in reasons.items():
            if job_id in tables.jobs:
                tables.put_job(replace(tables.jobs[job_id], reason=reason, updated_at=now))

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        jobs = self._store.answering().jobs
        return {job_id: jobs[job_id].state for job_id in job_ids if job_id in jobs}

    def journaled(self, key: AttemptKey) -> Journaled:
        tables = self._store.answering()
        events = [one for job_id, one in tables.events if (job_id, one.attempt) == (key.job_id, key.number)]
        started = [one.generation or 0 for one in events if one.kind == EventKind.GENERATION_STARTED.value]
        newest = max(started, default=0)
        lost = [one for one in events if one.kind == EventKind.PEER_LOST.value and (one.generation or 0) >= newest]
        ranks = list(tables.ranks.get(key, {}).values())
        return Journaled(ranks=ranks, missed=parse_replicas(one.evidence for one in lost))

    def members(self, key: AttemptKey, gone: Collection[int]) -> Members:
        tables = self._store.answering()
        reported: defaultdict[int, list[int]] = defaultdict(list)
        for (replica, incarnation), journal in tables.journals.get(key, {}).items():
            if journal.exit_record is None or journal.exit_record.outcome is not Outcome.REFUSED:
                reported[replica].append(incarnation)

        def read(kinds: Collection[str], replicas: Collection[int] | None) -> list[Event]:
            mine = [one for job_id, one in tables.events if (job_id, one.attempt) == (key.job_id, key.number)]
            return [one for one in mine if one.kind in kinds and (replicas is None or one.replica in replicas)]

        return read_members(reported, gone, read)

    def node_failures(self, cluster: str, *, since: datetime) -> Sequence[NodeFailure]:
        tables = self._store.answering()
        marks = [mark for mark in tables.node_failures.values() if mark.cluster == cluster and mark.at >= since]
        began = {mark.key: attempt.created_at for mark in marks if (attempt := tables.attempts.get(mark.key))}
        return [
            replace(mark, cleared_at=tables.cleared.get((cluster, mark.node)), began_at=began.get(mark.key))
            for mark in marks
        ]

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        tables = self._writing()
        tables.job(key.job_id)
        if key in tables.ports:
            return tables.ports[key][1]
        taken = {port for place, port in tables.ports.values() if place == cluster}
        above = (port for port in candidates if (after is None or port > after) and port not in taken)
        below = (port for port in candidates if after is not None and port <= after and port not in taken)
        free = next(above, None) or next(below, None)
        if free is None:
            raise Refused(f"cluster {cluster}: all {len(candidates)} rendezvous ports are taken")
        tables.ports[key] = (cluster, free)
        return free

    def _writing(self) -> Tables:
        """Return the tables if the lease holds. Raises StoreUnavailable, LeaseLost."""
        tables, now = self._store.answering(), self._clock.now()
        lease, until = tables.leases.get(self._lease.cluster, (None, now))
        if lease != self._lease or until <= now:
            raise LeaseLost(f"another service may supervise cluster {self._lease.cluster} now")
        return tables


def _supervised(tables: Tables, job: Job) -> Supervised:
    attempt = tables.attempt_of(job.id)
    if attempt is None:
        return Supervised(job=job, shared_spec=job.spec, attempt=None, training=_NO_TRAINING, exits={})
    training = tables.summaries[attempt.key].training()
    return Supervised(
        job=job, shared_spec=job.spec, attempt=attempt, training=training, exits=exits_of(tables, attempt.key)
    )
