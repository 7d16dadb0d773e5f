"""Counting jobs: each time while they are few, now and then when they are many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from orchestrator.domain.job.job import JobState
from orchestrator.queries.census import IDLE_SHARE, KEEP_S, MANY, Census
from orchestrator.store.job_reader import JobReader


class Counted:
    """A store with `jobs` queued jobs in each answer."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.now_s, self.takes_s = 50.0, 0.0
        self.asked: list[Collection[str] | None] = []

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        self.asked.append(projects)
        self.now_s += self.takes_s
        return {JobState.QUEUED: self.jobs}


def test_few_jobs_are_counted_each_time() -> None:
    counted = Counted(MANY - 1)
    census = Census(cast("JobReader", counted), monotonic=lambda: 0.0)
    census.count(None)
    counted.jobs = 3
    assert census.count(None) == {JobState.QUEUED: 3}


def test_many_jobs_are_counted_once_a_second_for_each_set_of_projects() -> None:
    counted = Counted(MANY)
    census = Census(cast("JobReader", counted), monotonic=lambda: counted.now_s)
    for projects in (None, ["a", "b"], ["b", "a"], ["a"], [], None):
        assert census.count(projects) == {JobState.QUEUED: MANY}
    assert counted.asked == [None, ["a", "b"], ["a"], []]
    counted.jobs = MANY + 1
    assert census.count(None) == {JobState.QUEUED: MANY}
    counted.now_s += KEEP_S
    assert census.count(None) == {JobState.QUEUED: MANY + 1}


def test_counts_that_take_long_are_kept_for_longer() -> None:
    counted = Counted(MANY)
    counted.takes_s = 0.5
    census = Census(cast("JobReader", counted), monotonic=lambda: counted.now_s)
    census.count(None)
    counted.now_s += 0.9 * IDLE_SHARE * counted.takes_s
    census.count(None)
    assert len(counted.asked) == 1
    counted.now_s += 0.1 * IDLE_SHARE * counted.takes_s
    census.count(None)
    assert len(counted.asked) == 2
