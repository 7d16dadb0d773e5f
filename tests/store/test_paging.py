from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.errors import NotFound, Refused
from orchestrator.ports import JobFilter
from tests.builders import at, make_attempt, make_batch, make_journal_event, make_progress, make_spec
from tests.store.harness import Stores


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    limit=st.integers(1, 4),
    later=st.lists(st.integers(0, 5), max_size=4),
    newest_first=st.booleans(),
)
def test_pages_show_each_job_once_while_others_are_added(
    stores: Stores, new_job: Callable[[], str], times: list[int], limit: int, later: list[int], newest_first: bool
) -> None:
    cluster = new_job()
    where = JobFilter(cluster=cluster)
    there = [stores.add(new_job(), spec=make_spec(cluster=cluster), created_at=at(time)) for time in times]
    shown: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = stores.reader.standings(where, limit=limit, cursor=cursor, newest_first=newest_first)
        shown += [standing.job.id for standing in page]
        if cursor is None:
            break
        assert len(page) == limit
        if later:
            stores.add(new_job(), spec=make_spec(cluster=cluster), created_at=at(later.pop()))
    assert len(set(shown)) == len(shown)
    ordered = sorted(there, key=lambda job: (job.created_at, job.id), reverse=newest_first)
    assert [job_id for job_id in shown if job_id in {job.id for job in there}] == [job.id for job in ordered]


def test_every_list_of_a_job_pages_in_its_order(stores: Stores) -> None:
    job = stores.add()
    for number in (1, 2, 3):
        stores.apply(job, make_attempt(number=number))
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
        _cursor("jobs-newest", "2026-01-01T00:00:00Z", 7),
        _cursor("jobs-newest", "2026-01-01T00:00:00Z", "a", "b"),
        _cursor("jobs-newest", None, "a"),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
)
def test_a_foreign_cursor_is_refused(stores: Stores, cursor: str) -> None:
    with pytest.raises(Refused, match="cursor is not one of this list"):
        stores.reader.standings(JobFilter(), limit=5, cursor=cursor)


@pytest.mark.parametrize("value", [True, 2**70, "1", None, 1.5])
def test_a_cursor_of_another_type_is_refused(stores: Stores, value: object) -> None:
    stores.add()
    with pytest.raises(Refused, match="cursor"):
        stores.history.events("job-1", limit=5, cursor=_cursor("events-job-1", value))


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
