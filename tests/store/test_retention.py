"""What is deleted of ended jobs in the database, and what accounts still contain afterwards."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.accounting.retention import DataKind
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.store.retention_store import RetentionStore
from tests.builders import NOW, at, make_batch, make_event, make_progress, make_spec
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
    found = retention.ended("local", DataKind.LOGS, before=at(90), after=None, limit=9)
    assert ([one.job_id for one in found.jobs], found.last) == (["b", "c", "a"], (at(30), "a"))
    later = retention.ended("local", DataKind.LOGS, before=at(90), after=(at(10), "b"), limit=1)
    assert [(one.job_id, one.finished_at) for one in later.jobs] == [("c", at(10))]
    assert later.last is not None
    nothing = retention.ended("local", DataKind.LOGS, before=at(90), after=(at(30), "a"), limit=1)
    assert (nothing.jobs, nothing.last) == ([], None)


def test_jobs_without_rows_of_a_kind_are_only_looked_at(stores: Stores, retention: RetentionStore) -> None:
    end(stores, stores.add_with_attempt("bare"), 10)
    reporting = stores.add_with_attempt("reporting")
    stores.ingest(make_batch("reporting", progress=[(1, make_progress(1, metrics={"loss": 2.5}))]))
    stores.apply(end(stores, reporting, 20), None, make_event("agent.note"))
    for kind, names in ((DataKind.METRICS, ["reporting"]), (DataKind.EVENTS, ["reporting"])):
        found = retention.ended("local", kind, before=at(90), after=None, limit=2)
        assert ([one.job_id for one in found.jobs], found.last) == (names, (at(20), "reporting")), kind


def test_the_jobs_of_another_cluster_are_only_looked_at(stores: Stores, retention: RetentionStore) -> None:
    for number in range(3):
        end(stores, stores.add(f"elsewhere-{number}", spec=make_spec(cluster="other")), number)
    found = retention.ended("local", DataKind.LOGS, before=at(90), after=None, limit=2)
    assert (found.jobs, found.last) == ([], (at(1), "elsewhere-1"))


def test_a_job_is_needed_until_it_and_jobs_that_start_from_it_have_ended(
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


def test_accounts_are_the_same_after_metrics_are_deleted(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    trained(stores, range(5, 8), generation=2, restored=4)
    before = kept(stores)
    assert retention.forget_metrics("job-1", removal(), limit=4) == 0, "the job is not at rest"
    end(stores, job)
    assert [retention.forget_metrics("job-1", removal(), limit=4) for _ in range(4)] == [4, 4, 2, 0]
    assert kept(stores) == before
    assert stores.history.metrics("job-1", since_step=-1, points=100) == []
    assert [event.kind for event in stores.events() if event.kind == EventKind.REMOVED] == [EventKind.REMOVED]


def test_a_second_removal_keeps_the_sums(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    trained(stores, range(1, 4), generation=1)
    end(stores, job)
    retention.forget_metrics("job-1", removal(), limit=100)
    assert list(kept(stores)) == [(1, 1)]
    assert retention.forget_metrics("job-1", removal(), limit=100) == 0


def test_metrics_are_summed_up_once(stores: Stores, retention: RetentionStore) -> None:
    """The metrics of a long job are deleted in hundreds of parts. Summing up the rest for each part takes hours."""
    job = stores.add_with_attempt()
    trained(stores, range(1, 11), generation=1)
    end(stores, job)

    def sums(parts: list[int]) -> int:
        with stores.recorded() as statements:
            assert [retention.forget_metrics("job-1", removal(), limit=4) for _ in parts] == parts
        return len([statement for statement, _ in statements if "GROUP BY metrics" in statement])

    assert sums([4]) > 0
    assert sums([4, 2]) == 0


def test_events_that_accounts_need_are_not_deleted(stores: Stores, retention: RetentionStore) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, None, make_event("snapshot.committed"), make_event("job.state", evidence={"state": "RUNNING"}))
    stores.apply(job, None, make_event("profiled"), removal())
    assert retention.forget_events("job-1", limit=9) == 0, "the job is not at rest"
    end(stores, job)
    assert [retention.forget_events("job-1", limit=1) for _ in range(3)] == [1, 1, 0]
    assert {event.kind for event in stores.events()} == {"job.submitted", "job.state", EventKind.REMOVED}


def test_working_folders_of_live_and_recently_ended_jobs_are_found(stores: Stores, retention: RetentionStore) -> None:
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


def test_without_live_jobs_there_is_no_oldest(stores: Stores, retention: RetentionStore) -> None:
    assert retention.oldest_live() is None


def test_forgetting_nothing_is_no_error(stores: Stores, retention: RetentionStore) -> None:
    retention.forget_snapshots("nobody")
    assert retention.forget_deliveries(before=NOW + timedelta(days=1), limit=5) == 0
