from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.job_summary import JobSummary
from orchestrator.store import job_pages
from orchestrator.store.records import JobFilter, JobOrder
from tests.builders import at, make_attempt, make_batch, make_journal_event, make_progress, make_spec
from tests.examples import examples
from tests.store.harness import Stores

_KEYS: dict[str, Callable[[Job], tuple[object, ...]]] = {
    **dict.fromkeys(("newest", "oldest"), lambda job: (job.created_at, job.id)),
    "state": lambda job: (job.state, job.created_at, job.id),
    "project": lambda job: (job.spec.project, job.created_at, job.id),
    "cluster": lambda job: (job.spec.cluster, job.created_at, job.id),
    "name": lambda job: (job.spec.name, job.created_at, job.id),
    "priority": lambda job: (job.spec.priority, job.created_at, job.id),
    "updated": lambda job: (job.updated_at, job.id),
}


@settings(max_examples=examples(10, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    limit=st.integers(1, 4),
    later=st.lists(st.integers(0, 5), max_size=4),
    order=st.sampled_from(JobOrder),
    projects=st.lists(st.sampled_from("ab"), min_size=13, max_size=13),
)
def test_pages_show_each_job_once_while_jobs_are_added(
    stores: Stores,
    new_job: Callable[[], str],
    times: list[int],
    limit: int,
    later: list[int],
    order: JobOrder,
    projects: list[str],
) -> None:
    cluster = new_job()
    where = JobFilter(cluster=cluster)

    def add(time: int) -> Job:
        given = projects.pop()
        spec = make_spec(cluster=cluster, project=given, name=f"{given}-{time % 2}", priority=time % 3 - 1)
        return stores.add(new_job(), spec=spec, created_at=at(time), updated_at=at(time * 7 % 5))

    there = [add(time) for time in times]
    shown: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = stores.reader.summaries(where, limit=limit, cursor=cursor, order=order)
        shown += [job.id for job in page]
        if cursor is None:
            break
        assert len(page) == limit
        if later:
            add(later.pop())
    assert len(set(shown)) == len(shown)
    ordered = sorted(there, key=_KEYS[order.lstrip("-")], reverse=order is JobOrder.NEWEST or order.startswith("-"))
    assert [job_id for job_id in shown if job_id in {job.id for job in there}] == [job.id for job in ordered]


@settings(max_examples=examples(15, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(["ant", "bee", "ants", "x"]), min_size=1, max_size=8),
    limit=st.integers(1, 4),
    looked_at=st.integers(1, 9),
    order=st.sampled_from(JobOrder),
    query=st.sampled_from(["ANT", "e", "nothing", "%"]),
    state=st.sampled_from([None, JobState.QUEUED, JobState.FAILED]),
)
def test_the_pages_of_a_search_look_at_a_few_jobs_each_and_together_find_all(
    stores: Stores,
    new_job: Callable[[], str],
    names: list[str],
    limit: int,
    looked_at: int,
    order: JobOrder,
    query: str,
    state: JobState | None,
) -> None:
    cluster = new_job()
    for number, name in enumerate(names):
        spec = make_spec(cluster=cluster, name=name, priority=number % 3)
        stores.add(new_job(), spec=spec, created_at=at(number % 4), updated_at=at(number * 7 % 5), reason="waits")
    where = JobFilter(cluster=cluster, state=state)
    listed = _pages(stores, where, 1000, order)[0]
    matching = [job for job in listed if any(query.lower() in text.lower() for text in (job.id, job.name, job.reason))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_pages, "LOOKED_AT", looked_at)
        pages = _pages(stores, replace(where, query=query), limit, order)
    assert [job.id for page in pages for job in page] == [job.id for job in matching]
    assert len(pages) <= len(listed) // looked_at + len(matching) // limit + 1
    positions = [[listed.index(job) for job in page] for page in pages]
    assert all(found[-1] - found[0] < looked_at for found in positions if found)


def _pages(stores: Stores, where: JobFilter, limit: int, order: JobOrder) -> list[Sequence[JobSummary]]:
    page, cursor = stores.reader.summaries(where, limit=limit, cursor=None, order=order)
    pages = [page]
    while cursor is not None:
        page, cursor = stores.reader.summaries(where, limit=limit, cursor=cursor, order=order)
        pages.append(page)
    return pages


@pytest.mark.parametrize("order", list(JobOrder), ids=str)
def test_a_search_starts_and_stops_within_the_index_of_its_order(
    stores: Stores, order: JobOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_pages, "LOOKED_AT", 2)
    for number in range(4):
        stores.add(f"job-{number}", created_at=at(number))
    where, cursor = JobFilter(query="nothing"), None
    for _ in range(2):

        def search(page: str | None = cursor) -> tuple[Sequence[JobSummary], str | None]:
            return stores.reader.summaries(where, limit=1, cursor=page, order=order)

        for number in (0, 1):
            plan = _explain(stores, search, number)
            assert "TEMP B-TREE" not in plan, plan
            assert "Sort" not in plan, plan
            assert "ix_jobs_" in plan, plan
        assert re.search(r"INDEX ix_\w+ \([^)]*[<>]|Index Cond: .*[<>]", plan), f"it does not stop: {plan}"
        _, cursor = search()


@pytest.mark.parametrize("order", list(JobOrder), ids=str)
def test_every_order_uses_an_index_and_does_not_sort(stores: Stores, order: JobOrder) -> None:
    for number in range(3):
        stores.add(f"job-{number}", created_at=at(number))
    first, cursor = stores.reader.summaries(JobFilter(), limit=1, cursor=None, order=order)
    assert len(first) == 1
    for page in (None, cursor):
        plan = _explain(
            stores, lambda page=page: stores.reader.summaries(JobFilter(), limit=1, cursor=page, order=order)
        )
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan
        assert "ix_jobs_" in plan, plan


def _explain(stores: Stores, ask: Callable[[], object], number: int = 0) -> str:
    """Return the part of the query plan that finds the page's jobs, of the statement with this number.

    PostgreSQL may not sort, as it would with a small table.
    """
    with stores.recorded() as statements:
        ask()
    statement, parameters = [each for each in statements if "FROM jobs" in each[0]][number]
    with stores.database.read() as session:
        connection = session.connection()
        if stores.database.file is None:
            for way in ("seqscan", "bitmapscan", "sort", "incremental_sort"):
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
            return plan.partition("Limit")[2].partition("SubPlan")[0]
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        page = next((step.id for step in steps if step.detail.endswith(" page")), 0)
        return "\n".join(step.detail for step in steps if step.parent == page)


def test_every_list_of_a_job_is_paged_in_its_order(stores: Stores) -> None:
    job = stores.add()
    for number in (1, 2, 3):
        stores.apply(job, make_attempt(number=number, nodes="2"))
        kept = [
            (step, make_journal_event("snapshot.committed", evidence={"name": f"step-{step:08d}-a{number}-g1"}))
            for step in (5, 10)
        ]
        for replica in (0, 1):
            line = make_progress(1, rank=replica)
            events = kept if replica == 0 else []
            stores.ingest(make_batch(attempt=number, replica=replica, progress=[(10, line)], events=events))
    history = stores.history
    assert _all(lambda c: history.attempts("job-1", limit=2, cursor=c), lambda one: one.attempt.key.number) == [1, 2, 3]
    assert _all(lambda c: history.workers("job-1", limit=2, cursor=c), lambda one: (one.attempt, one.replica)) == [
        (3, 0),
        (3, 1),
        (2, 0),
        (2, 1),
        (1, 0),
        (1, 1),
    ]
    assert _all(lambda c: history.snapshots("job-1", limit=2, cursor=c), lambda one: (one.step, one.attempt)) == [
        (10, 3),
        (10, 2),
        (10, 1),
        (5, 3),
        (5, 2),
        (5, 1),
    ]
    ids = _all(lambda c: history.events("job-1", limit=2, cursor=c), lambda one: one.id)
    assert len(ids) == 7
    assert ids == sorted(ids)


def _all(page_behind: Callable[[str | None], tuple[object, str | None]], key: Callable[..., object]) -> list[object]:
    items, cursor = page_behind(None)
    shown: list[object] = []
    while True:
        assert isinstance(items, list)
        shown += [key(item) for item in items]
        if cursor is None:
            return shown
        items, cursor = page_behind(cursor)


def _cursor(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "ä",
        "\ud800",
        "e30=",
        _cursor(),
        _cursor("jobs-newest"),
        _cursor("jobs-oldest", "2026-01-01T00:00:00Z", "a"),
        _cursor("jobs-newest", "2026-01-01", "a"),
        _cursor("jobs-newest", "0001-01-01T00:00:00+23:59", "a"),
        _cursor("jobs-newest", "2026-01-01T00:00:00Z", 7),
        _cursor("jobs-newest", "2026-01-01T00:00:00Z", "a", "b"),
        _cursor("jobs-newest", None, "a"),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
)
def test_an_invalid_cursor_is_refused(stores: Stores, cursor: str) -> None:
    with pytest.raises(Refused, match="cursor does not belong to this list"):
        stores.reader.summaries(JobFilter(), limit=5, cursor=cursor)


@pytest.mark.parametrize("value", [True, 2**70, "1", None, 1.5])
def test_a_cursor_with_a_value_of_another_type_is_refused(stores: Stores, value: object) -> None:
    stores.add()
    with pytest.raises(Refused, match="cursor"):
        stores.history.events("job-1", limit=5, cursor=_cursor("events-job-1", value))


def test_a_cursor_with_a_number_that_its_column_cannot_hold_is_refused(stores: Stores) -> None:
    stores.add()
    with pytest.raises(Refused, match="cursor"):
        stores.history.attempts("job-1", limit=5, cursor=_cursor("attempts-job-1-up", 2**31))
    with pytest.raises(Refused, match="cursor"):
        stores.history.workers("job-1", limit=5, cursor=_cursor("workers-job-1-up", 2**31, 0, 0))


def test_a_cursor_of_another_job_is_refused(stores: Stores) -> None:
    stores.add("job-1")
    stores.add("job-2")
    with pytest.raises(Refused, match="cursor"):
        stores.history.events("job-2", limit=5, cursor=_cursor("events-job-1", 1))


def test_the_history_of_an_unknown_job_is_not_found(stores: Stores) -> None:
    for read in (stores.history.attempts, stores.history.events, stores.history.snapshots, stores.history.workers):
        with pytest.raises(NotFound, match="job-9"):
            read("job-9", limit=5, cursor=None)
    with pytest.raises(NotFound, match="job-9"):
        stores.history.metrics("job-9", since_step=0, points=5)
