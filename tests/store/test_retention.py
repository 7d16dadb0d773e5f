"""What is removed of ended jobs in the database, and what accounts still know of them afterwards."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event

from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.store.retention_store import RetentionStore
from tests.builders import NOW, at, make_event, make_spec
from tests.store.harness import Stores
from tests.store.test_chronicles import kept, trained


@pytest.fixture
def retention(stores: Stores) -> RetentionStore:
    return RetentionStore(stores.database)


def end(stores: Stores, job: Job, when: float = 100) -> Job:
    over = job.to(JobState.CANCELLED, reason="was cancelled", now=at(when))
    stores.apply(over)
    return over


def removal() -> Event:
    return make_event(EventKind.REMOVED.value)


def test_jobs_at_rest_are_found_by_their_end(stores: Stores, retention: RetentionStore) -> None:
    for name, when in (("a", 30), ("b", 10), ("c", 10), ("late", 90)):
        end(stores, stores.add(name), when)
    stores.add("lives")
    end(stores, stores.add("elsewhere", spec=make_spec(cluster="other")), 5)
    retried = end(stores, stores.add("retried"), 10)
    request = make_event("retry.requested")
    assert stores.jobs.record_request("retried", Desired(number=retried.desired.number + 1, retry_number=1), request)
    found = retention.ended("local", before=at(90), behind=None, limit=9)
    assert [one.job_id for one in found] == ["b", "c", "a"]
    behind = retention.ended("local", before=at(90), behind=(at(10), "b"), limit=1)
    assert [(one.job_id, one.finished_at) for one in behind] == [("c", at(10))]


def test_a_job_is_needed_while_it_lives_or_a_living_one_begins_from_it(
    stores: Stores, retention: RetentionStore
) -> None:
    end(stores, stores.add("source"))
    assert not retention.is_needed("source")
    assert retention.is_needed("nobody")
    user = stores.add("user", spec=make_spec(snapshot={"from": "source"}))
    assert retention.is_needed("source")
    assert retention.is_needed("user")
    end(stores, user)
    assert not retention.is_needed("source")
    stores.add("by-path", spec=make_spec(snapshot={"from": "/runs/source/snapshots"}))
    assert retention.is_needed("source")


def test_accounts_know_what_metrics_summed_up_to(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(5, 8), generation=2, restored=4)
    before = kept(stores)
    assert retention.forget_metrics("job-1", removal(), limit=4) == 0, "it is not at rest"
    end(stores, job)
    assert [retention.forget_metrics("job-1", removal(), limit=4) for _ in range(4)] == [4, 4, 2, 0]
    assert kept(stores) == before
    assert stores.history.metrics("job-1", since_step=-1, points=100) == []
    assert [event.kind for event in stores.events() if event.kind == EventKind.REMOVED] == [EventKind.REMOVED]


def test_a_later_life_is_added_to_the_sums(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    trained(stores, range(1, 4), generation=1)
    end(stores, job)
    retention.forget_metrics("job-1", removal(), limit=100)
    assert list(kept(stores)) == [(1, 1)]
    assert retention.forget_metrics("job-1", removal(), limit=100) == 0


def test_what_is_summed_up_is_not_summed_up_again(stores: Stores, retention: RetentionStore) -> None:
    """A long job's metrics go in hundreds of parts: to look at all the others for each takes hours."""
    job = stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    end(stores, job)
    sums: list[str] = []

    def note(_1: object, _2: object, statement: str, *_: object) -> None:
        sums.extend([statement] if "GROUP BY metrics" in statement else [])

    event.listen(stores.database.engine, "before_cursor_execute", note)
    assert retention.forget_metrics("job-1", removal(), limit=4) == 4
    assert sums
    sums.clear()
    assert [retention.forget_metrics("job-1", removal(), limit=4) for _ in range(2)] == [4, 2]
    assert sums == []


def test_lesser_events_go_and_those_that_accounts_are_read_from_stay(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, None, make_event("snapshot.committed"), make_event("job.state", evidence={"state": "RUNNING"}))
    stores.apply(job, None, make_event("profiled"), removal())
    assert retention.forget_events("job-1", limit=9) == 0, "it is not at rest"
    end(stores, job)
    assert [retention.forget_events("job-1", limit=1) for _ in range(3)] == [1, 1, 0]
    assert {event.kind for event in stores.events()} == {"job.submitted", "job.state", EventKind.REMOVED}


def test_working_folders_are_of_jobs_that_live_or_ended_lately(stores: Stores, retention: RetentionStore) -> None:
    def add(name: str, ended: float | None) -> None:
        run = {"script": "train.py", "workdir": f"/src/{name}"}
        job = stores.add(name, spec=make_spec(run=run), created_at=at(len(name)))
        if ended is not None:
            end(stores, job, ended)

    add("old", 10)
    add("lately", 60)
    add("alive", None)
    stores.add("none")
    assert set(retention.workdirs(since=at(50))) == {"/src/lately", "/src/alive", "."}
    assert retention.oldest_live() == NOW


def test_with_nobody_alive_there_is_no_oldest(stores: Stores, retention: RetentionStore) -> None:
    assert retention.oldest_live() is None


def test_snapshots_are_noted_as_gone(stores: Stores, retention: RetentionStore) -> None:
    retention.forget_snapshots("nobody")
    assert retention.forget_deliveries(before=NOW + timedelta(days=1), limit=5) == 0
