"""The jobs of one cluster that are not at rest, and which of them the next pass looks at.

A quiet job costs nothing. A pass looks at a job that has a new event, that the cluster shows differently, whose place
in the queue has changed, or whose deadline has come. Changes are found in the table of events, so a crash loses none.
The roster itself may be lost: an empty one looks at every job.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import CHECK_S, check_after_s
from orchestrator.domain.queueing.admission import Claimant, claimant_of, dependencies_of
from orchestrator.ports.supervision import Supervised, SupervisorReader

# Alarms that are more than a minute ahead are due at whole multiples of this, so that one pass looks at many jobs.
_GRID_S = 5.0
_COARSE_S = 60.0
_PART = 200  # jobs that are read together


class _Alarm(NamedTuple):
    """When to look at a sleeping job. `is_check` if only the regular check is due then, and no deadline."""

    at: datetime
    job_id: str
    is_check: bool


class Roster:
    """Not thread-safe. StoreUnavailable loses no change: the next call finds it."""

    def __init__(self, cluster: str, store: SupervisorReader) -> None:
        self._cluster = cluster
        self._store = store
        self._claimants: dict[str, Claimant] = {}
        self._newest_event: int | None = None  # the newest that was read
        self._stale: set[str] = set()  # jobs whose claimants must be read again
        self._awake: set[str] = set()
        self._checked: set[str] = set()  # awake jobs that only the time since the last look has woken
        self._alarms: dict[str, _Alarm] = {}  # of the sleeping jobs
        self._queue: list[_Alarm] = []  # a heap of the alarms, with outdated ones
        self._compare_at: datetime | None = None  # when to compare the known jobs with the stored ones
        self._dependencies: Set[str] = frozenset()
        self._dependencies_of = 0  # the version for which they were found
        self.version = 0  # rises when a change may affect which jobs may start

    @property
    def claimants(self) -> Collection[Claimant]:
        return self._claimants.values()

    @property
    def dependencies(self) -> Set[str]:
        """The ids of the jobs that queued jobs wait for."""
        if self._dependencies_of != self.version:
            self._dependencies = dependencies_of(self._claimants.values())
            self._dependencies_of = self.version
        return self._dependencies

    @property
    def asleep(self) -> Set[str]:
        return self._alarms.keys()

    def live(self) -> Mapping[AttemptKey, int]:
        """Return the live attempts, each with its maximum number of replicas."""
        return {each.live: each.held_nodes for each in self._claimants.values() if each.live is not None}

    def awake_attempts(self) -> Set[AttemptKey]:
        """Return the live attempts of the jobs that are awake."""
        awake = (self._claimants[job_id].live for job_id in self._awake & self._claimants.keys())
        return {live for live in awake if live is not None}

    def refresh(self) -> None:
        """Read what changed since the last call. Raises StoreUnavailable."""
        if self._newest_event is None:
            _, newest = self._store.changed(None)
            self._read_all(self._store.at_work(self._cluster) | self._claimants.keys())
            self._newest_event = newest
            self.wake_all()
            return
        changed, self._newest_event = self._store.changed(self._newest_event)
        self.wake(changed)
        self._stale |= changed
        self._read_all(self._stale)
        self._stale = set()

    def wake(self, job_ids: Iterable[str]) -> None:
        """Let the next pass look at these jobs."""
        for job_id in job_ids:
            self._awake.add(job_id)
            self._checked.discard(job_id)
            self._alarms.pop(job_id, None)

    def wake_all(self) -> None:
        self.wake(self._claimants)

    def sleep(self, job_id: str, *, until: datetime, now: datetime) -> None:
        """Do not look at the job before `until`, or before the next check, unless something wakes it."""
        check_at = now + timedelta(seconds=check_after_s(job_id))
        at = min(until, check_at)
        if at > now + timedelta(seconds=_COARSE_S):
            at += timedelta(seconds=-at.timestamp() % _GRID_S)
        self._awake.discard(job_id)
        self._checked.discard(job_id)
        if job_id in self._claimants:
            job_id = self._claimants[job_id].id  # the same object, not an equal one: thousands of jobs sleep
        self._alarms[job_id] = alarm = _Alarm(at, job_id, until > check_at)
        heapq.heappush(self._queue, alarm)

    def ring(self, now: datetime) -> None:
        """Wake the jobs whose alarm is due. Every CHECK_S, also find stored jobs that are not known.

        Raises StoreUnavailable.
        """
        if self._compare_at is None or not now < self._compare_at <= now + timedelta(seconds=CHECK_S):
            unknown = self._store.at_work(self._cluster) - self._claimants.keys()
            self._compare_at = now + timedelta(seconds=CHECK_S)
            self.wake(unknown)
            self._stale |= unknown
            self._checked |= unknown
        while (alarm := self._next()) is not None and alarm.at <= now:
            self.wake([alarm.job_id])
            if alarm.is_check:
                self._checked.add(alarm.job_id)

    def due(self) -> Iterator[Supervised]:
        """Yield the jobs that are awake, oldest first. Each stays awake until it sleeps. Raises StoreUnavailable."""
        for part in self._in_parts(self._awake):
            yield from self._read(part)

    def is_only_checked(self, job_id: str) -> bool:
        """Whether only the regular check has woken the job. If there is something to do, a change was overlooked."""
        return job_id in self._checked

    @property
    def next_alarm_at(self) -> datetime | None:
        alarm = self._next()
        return None if alarm is None else alarm.at

    def _next(self) -> _Alarm | None:
        """Return the first alarm of a sleeping job."""
        while self._queue and self._alarms.get(self._queue[0].job_id) is not self._queue[0]:
            heapq.heappop(self._queue)
        return self._queue[0] if self._queue else None

    def _in_parts(self, job_ids: Set[str]) -> Iterator[Set[str]]:
        """Yield parts of these jobs, the oldest first: thousands of jobs are never in memory together."""
        known = self._claimants
        oldest_first = sorted(job_ids & known.keys(), key=lambda job_id: (known[job_id].created_at, job_id))
        ordered = [*oldest_first, *(job_ids - known.keys())]
        for start in range(0, len(ordered), _PART):
            yield set(ordered[start : start + _PART])

    def _read_all(self, job_ids: Set[str]) -> None:
        for part in self._in_parts(job_ids):
            self._read(part)

    def _read(self, job_ids: Set[str]) -> Sequence[Supervised]:
        """Read these jobs, and forget those not found: they are at rest, deleted or elsewhere."""
        found = self._store.supervised(self._cluster, job_ids)
        for each in found:
            claimant = claimant_of(each.job, each.attempt, each.shared_spec)
            if claimant != self._claimants.get(claimant.id):
                self._claimants[claimant.id] = claimant
                self.version += 1
        for job_id in job_ids - {each.job.id for each in found}:
            self.version += self._claimants.pop(job_id, None) is not None
            self._awake.discard(job_id)
            self._checked.discard(job_id)
            self._alarms.pop(job_id, None)
        return found
