"""Counting jobs: each time while they are few, once a second when they are many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from orchestrator.domain.job.job import JobState
from orchestrator.queries.census import KEEP_S, MANY, Census
from orchestrator.store.job_reader import JobReader


class Counted:
    """A store with `jobs` queued jobs in each answer."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.asked: list[Collection[str] | None] = []

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        self.asked.append(projects)
        return {JobState.QUEUED: self.jobs}


def test_few_jobs_are_counted_each_time() -> None:
    counted = Counted(MANY - 1)
    census = Census(cast("JobReader", counted), monotonic=lambda: 0.0)
    census.count(None)
    counted.jobs = 3
    assert census.count(None) == {JobState.QUEUED: 3}


def test_many_jobs_are_counted_once_a_second_for_each_set_of_projects() -> None:
    now_s = [50.0]
    counted = Counted(MANY)
    census = Census(cast("JobReader", counted), monotonic=lambda: now_s[0])
    for projects in (None, ["a", "b"], ["b", "a"], ["a"], [], None):
        assert census.count(projects) == {JobState.QUEUED: MANY}
    assert counted.asked == [None, ["a", "b"], ["a"], []]
    counted.jobs = MANY + 1
    assert census.count(None) == {JobState.QUEUED: MANY}
    now_s[0] += KEEP_S
    assert census.count(None) == {JobState.QUEUED: MANY + 1}
