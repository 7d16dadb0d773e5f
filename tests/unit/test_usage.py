"""The usage of many jobs: when each is read, and the answer if there are too many."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from orchestrator.domain.accounting.breakdown import Grouping, Prices
from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.job.job import Job, JobState
from orchestrator.queries.usage import MOST_JOBS, Usage, visible
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.store.records import Lifespan
from tests.builders import at, make_job, make_spec


@dataclass
class Shelf:
    """A store of jobs without attempts that records which jobs are read."""

    clock: VirtualClock
    jobs: dict[str, Job] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    read_s: float = 0.0
    passed_s: float = 0.0
    asked: list[tuple[datetime, datetime, Collection[str] | None, int]] = field(default_factory=list)
    repeated: int = 1

    def monotonic(self) -> float:
        return self.clock.now().timestamp() + self.passed_s

    def chronicle(self, job_id: str) -> Chronicle:
        self.read.append(job_id)
        self.passed_s += self.read_s
        if job_id not in self.jobs:
            raise NotFound(f"there is no job {job_id}")
        return Chronicle(job=self.jobs[job_id], attempts=[], events=[], kept={}, heard_at={})

    def lifespans(
        self, *, since: datetime, until: datetime, projects: Collection[str] | None, limit: int
    ) -> Sequence[Lifespan]:
        self.asked.append((since, until, projects, limit))
        spans = [
            Lifespan(job_id=name, updated_at=job.updated_at, finished_at=job.finished_at)
            for name, job in self.jobs.items()
        ]
        return (spans * self.repeated)[:limit]


@pytest.fixture
def shelf() -> Shelf:
    clock = VirtualClock(at(0))
    clock.advance(100)
    return Shelf(clock)


def usage_of(shelf: Shelf, prices: Prices | None = None) -> Usage:
    return Usage(shelf, shelf.clock, prices, monotonic=shelf.monotonic)


def names_read(shelf: Shelf, usage: Usage) -> list[str]:
    shelf.read.clear()
    usage.shares(Grouping.PROJECT)
    return shelf.read


def spans_of(shelf: Shelf) -> Sequence[Lifespan]:
    return shelf.lifespans(since=at(0), until=at(0), projects=None, limit=MOST_JOBS)


def test_a_job_that_held_nothing_has_no_goodput(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    assert usage_of(shelf).goodputs(spans_of(shelf), within_s=1) == {}
    assert shelf.read == ["a"]


def test_goodputs_of_a_list_are_read_within_a_time_and_the_rest_later(shelf: Shelf) -> None:
    shelf.jobs |= {name: make_job(name) for name in "abcd"}
    shelf.read_s, usage = 0.4, usage_of(shelf)
    usage.goodputs(spans_of(shelf), within_s=0.7)
    assert shelf.read == ["a", "b"]
    usage.goodputs(spans_of(shelf), within_s=0.7)
    assert shelf.read == ["a", "b", "c", "d"]
    usage.goodputs(spans_of(shelf), within_s=0.7)
    assert shelf.read == ["a", "b", "c", "d"], "none of them has changed"


def test_a_list_does_not_wait_for_another_reader(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    usage = usage_of(shelf)
    with usage._reading:
        assert usage.goodputs(spans_of(shelf), within_s=1) == {}
    assert shelf.read == []


def test_shares_are_of_the_last_thirty_days_by_default(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a", owner="ann")
    found = usage_of(shelf).shares(Grouping.USER)
    assert (found.until - found.since, found.by, found.currency) == (timedelta(days=30), "user", None)
    assert [(share.name, share.device_seconds, share.cost) for share in found.items] == [("ann", 100.0, None)]
    assert (found.total.device_seconds, found.total.bins["queue"]) == (100.0, 100.0)
    part = usage_of(shelf).shares(Grouping.USER, since=at(90), until=at(95), projects=["default"])
    assert part.total.device_seconds == 5.0
    assert shelf.asked[-1] == (at(90), at(95), ["default"], MOST_JOBS + 1)


def test_the_future_has_no_shares(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    found = usage_of(shelf).shares(Grouping.JOB, since=at(50), until=at(1000))
    assert (found.until, found.total.device_seconds) == (at(100), 50.0)


def test_costs_have_their_currency(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a", state=JobState.RUNNING)
    found = usage_of(shelf, Prices(currency="EUR", device_hour=1.0)).shares(Grouping.PROJECT)
    assert (found.currency, found.total.cost, found.total.lost_cost) == ("EUR", 0.0, 0.0)


def test_a_live_job_is_read_again_after_ten_seconds(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    usage = usage_of(shelf)
    assert names_read(shelf, usage) == ["a"]
    shelf.clock.advance(9)
    assert names_read(shelf, usage) == []
    shelf.clock.advance(1)
    assert names_read(shelf, usage) == ["a"]


def test_a_change_of_status_is_read_at_once(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    usage = usage_of(shelf)
    names_read(shelf, usage)
    shelf.jobs["a"] = make_job("a", updated_at=at(99))
    assert names_read(shelf, usage) == ["a"]


def test_reading_takes_at_most_a_twentieth_of_the_time(shelf: Shelf) -> None:
    shelf.jobs |= {name: make_job(name) for name in "abcd"}
    shelf.read_s = 2.0
    usage = usage_of(shelf)
    names_read(shelf, usage)
    shelf.clock.advance(130)
    assert names_read(shelf, usage) == []
    shelf.clock.advance(30)
    assert names_read(shelf, usage) == ["a", "b", "c", "d"]


def test_a_job_that_ended_a_while_ago_is_read_once(shelf: Shelf) -> None:
    over = {"state": JobState.FAILED, "updated_at": at(50), "finished_at": at(50)}
    shelf.jobs["a"] = make_job("a", **over)
    usage = usage_of(shelf)
    assert names_read(shelf, usage) == ["a"]
    shelf.clock.advance(560)
    assert names_read(shelf, usage) == ["a"], "its last journals may have arrived since"
    shelf.clock.advance(100_000)
    assert names_read(shelf, usage) == []


def test_a_job_that_was_deleted_meanwhile_is_skipped(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    usage = usage_of(shelf)

    def gone(job_id: str) -> Chronicle:
        raise NotFound(f"there is no job {job_id}")

    shelf.chronicle = gone  # type: ignore[method-assign]
    assert usage.shares(Grouping.PROJECT).items == []


def test_too_many_jobs_are_refused_and_have_no_metrics(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a")
    shelf.repeated = MOST_JOBS + 1
    with pytest.raises(Refused, match="choose a shorter time or one project"):
        usage_of(shelf).shares(Grouping.PROJECT)
    assert usage_of(shelf).last_day() == {}


def test_the_last_day_is_read_over_several_scrapes_if_it_takes_long(shelf: Shelf) -> None:
    shelf.jobs |= {name: make_job(name) for name in "abcd"}
    shelf.read_s, usage = 1.5, usage_of(shelf)
    assert usage.last_day() == {}
    assert shelf.read == ["a", "b"]
    assert usage.last_day()
    assert shelf.read == ["a", "b", "c", "d"]


def test_the_last_day_is_divided_by_project_and_bin(shelf: Shelf) -> None:
    shelf.clock.advance(86_400)
    shelf.jobs["a"] = make_job("a", spec=make_spec(project="vision"))
    found = usage_of(shelf).last_day()
    assert found["vision", "queue"] == 86_400.0
    assert sum(found.values()) == 86_400.0


@pytest.mark.parametrize(
    ("projects", "wanted", "seen"),
    [
        (None, None, None),
        (None, "a", ["a"]),
        ({"b", "a"}, None, ["a", "b"]),
        ({"b", "a"}, "a", ["a"]),
        ({"b"}, "a", []),
        (set(), None, []),
    ],
)
def test_a_caller_sees_only_visible_projects(
    projects: set[str] | None, wanted: str | None, seen: list[str] | None
) -> None:
    assert visible(projects, wanted) == seen


def test_a_cached_job_does_not_keep_its_spec_in_memory(shelf: Shelf) -> None:
    shelf.jobs["a"] = make_job("a", spec=make_spec())
    spec, usage = weakref.ref(shelf.jobs["a"].spec), usage_of(shelf)
    usage.goodputs(spans_of(shelf), within_s=1)
    shelf.jobs.clear()
    gc.collect()
    assert spec() is None
