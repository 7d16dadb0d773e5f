"""Journal lines may arrive by two ways, repeatedly, late and overlapping. Each counts once, and in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from orchestrator.domain.errors import StoreUnavailable
from orchestrator.store import sqlite
from orchestrator.store.lookups import append_events
from tests.builders import make_batch, make_event, make_journal_event, make_progress
from tests.examples import examples
from tests.store.harness import Stores


def test_lines_that_arrive_concurrently_are_stored_once(open_stores: Callable[[], Stores]) -> None:
    services = [open_stores() for _ in range(4)]
    services[0].add_with_attempt()
    batch = make_batch(events=[(10 * n, make_journal_event(sentence=str(n))) for n in range(1, 31)])
    services[0].ingest(make_batch(events=list(batch.events[:1])))
    together = Barrier(8)

    def deliver(number: int) -> None:
        together.wait()
        services[number % 4].ingest(batch)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deliver, range(8)))
    assert [one.sentence for one in services[0].events()[1:]] == [str(n) for n in range(1, 31)]


JOURNAL_LINES = 12


@st.composite
def _deliveries(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Batches as (progress from, to, events from, to) in lines. None starts after what arrived before."""
    arrived = [0, 0]
    deliveries = []
    for _ in range(draw(st.integers(1, 8))):
        ends = []
        for journal in (0, 1):
            start = draw(st.integers(0, arrived[journal]))
            end = draw(st.integers(start, JOURNAL_LINES))
            arrived[journal] = max(arrived[journal], end)
            ends += [start, end]
        deliveries.append((ends[0], ends[1], ends[2], ends[3]))
    return deliveries


@settings(max_examples=examples(10, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deliveries=_deliveries())
def test_each_line_counts_once_however_batches_overlap_or_repeat(
    stores: Stores, new_job: Callable[[], str], deliveries: list[tuple[int, int, int, int]]
) -> None:
    job = stores.add_with_attempt(new_job())
    progress = [(100 * n, make_progress(n)) for n in range(1, JOURNAL_LINES + 1)]
    events = [
        (50 * n, make_journal_event("restart.in_place", generation=n + 1, sentence=str(n)))
        for n in range(1, JOURNAL_LINES + 1)
    ]
    for p_from, p_to, e_from, e_to in deliveries:
        lines = make_batch(job.id, progress=progress[p_from:p_to], events=events[e_from:e_to])
        stores.ingest(lines)
    p_end, e_end = max(one[1] for one in deliveries), max(one[3] for one in deliveries)
    offsets = stores.offsets(job.id)[0, 1]
    assert (offsets.progress, offsets.events) == (100 * p_end, 50 * e_end)
    assert [point.step for point in stores.history.metrics(job.id, since_step=-1, points=10_000)] == list(
        range(1, p_end + 1)
    )
    assert [one.sentence for one in stores.events(job.id)[1:]] == [str(n) for n in range(1, e_end + 1)]
    assert stores.reader.standing(job.id).training.restarts == e_end


def test_an_event_waits_until_events_with_earlier_ids_are_visible(
    open_stores: Callable[[], Stores], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reader that has passed an id would miss events that become visible later."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    first, second = open_stores(), open_stores()
    first.add()
    with first.database.write() as session:
        append_events(session, [("job-1", make_event())])
        with pytest.raises(StoreUnavailable):
            _append_impatiently(second)
    _append_impatiently(second)
    assert len(second.events()) == 3


def test_an_empty_delivery_does_not_wait_for_other_writers(stores: Stores) -> None:
    with ThreadPoolExecutor(1) as pool, stores.database.write() as session:
        session.connection()
        pool.submit(stores.ingest).result(timeout=300)


def _append_impatiently(stores: Stores) -> None:
    with stores.database.write() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SET LOCAL lock_timeout = '10ms'"))
        append_events(session, [("job-1", make_event())])
