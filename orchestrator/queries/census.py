"""Counts jobs by state. Counting a hundred thousand takes as long as reading a page of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from orchestrator.domain.job.job import JobState
from orchestrator.store.job_reader import JobReader

MANY = 10_000  # jobs; fewer are counted each time
KEEP_S = 1.0  # at least
IDLE_SHARE = 20  # or this many times as long as counting took
_PROJECTS = 1000  # sets of projects whose counts are kept


class Census:
    """Caches the counts of many jobs, so that counting stays a small part of the service's work. Thread-safe."""

    def __init__(self, jobs: JobReader, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._monotonic = monotonic
        self._kept: dict[frozenset[str] | None, tuple[float, Mapping[JobState, int]]] = {}  # with the end

    def count(self, projects: Collection[str] | None) -> Mapping[JobState, int]:
        """`projects` None means all. Raises StoreUnavailable."""
        key = None if projects is None else frozenset(projects)
        kept = self._kept.get(key)
        began_s = self._monotonic()
        if kept is not None and began_s < kept[0]:
            return kept[1]
        counts = self._jobs.count_by_state(projects)
        if sum(counts.values()) >= MANY:
            if len(self._kept) >= _PROJECTS:
                self._kept = {}
            now_s = self._monotonic()
            self._kept[key] = now_s + max(KEEP_S, IDLE_SHARE * (now_s - began_s)), counts
        return counts
