"""Listeners get each committed event once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.event import EventKind
from orchestrator.store.engine import News
from tests.builders import at, make_attempt, make_batch, make_event, make_job, make_journal_event, make_progress
from tests.store.harness import Stores


@pytest.fixture
def stores(open_stores: Callable[[], Stores]) -> Stores:
    """Uses a separate database, because listeners cannot be removed."""
    return open_stores()


@pytest.fixture
def heard(stores: Stores) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def listen(news: News) -> None:
        found.extend((job_id, event.kind) for job_id, event in news)

    stores.database.listen(listen)
    return found


def test_listeners_get_committed_events(stores: Stores, heard: list[tuple[str, str]]) -> None:
    job = stores.add()
    stores.apply(job, make_attempt(), make_event("attempt.state"), make_event("node.marked"))
    assert heard == [("job-1", "job.submitted"), ("job-1", "attempt.state"), ("job-1", "node.marked")]


def test_listeners_get_nothing_after_a_rollback(stores: Stores, heard: list[tuple[str, str]]) -> None:
    with pytest.raises(NotFound):
        stores.apply(make_job("absent"), None, make_event())
    assert heard == []


def test_listeners_get_a_change_once_that_every_agent_reports(stores: Stores, heard: list[tuple[str, str]]) -> None:
    stores.add_with_attempt()
    heard.clear()
    restart = make_journal_event("restart.in_place", generation=2, evidence={"seconds": 0.4})
    for replica in (0, 1):
        stores.ingest(make_batch(replica=replica, events=[(50, restart)]))
    stores.ingest(make_batch(replica=1, events=[(50, restart)]))
    later = make_journal_event("group.shrunk", generation=3, evidence={"seconds": 2.0})
    stores.ingest(make_batch(replica=0, events=[(50, restart), (90, later)]))
    assert heard == [("job-1", "restart.in_place"), ("job-1", "group.shrunk")]
    assert [event.kind for event in stores.events()].count("restart.in_place") == 2
    assert stores.only_supervised().training.restarts == 1


def test_listeners_get_no_forged_service_events(stores: Stores, heard: list[tuple[str, str]]) -> None:
    stores.add_with_attempt()
    heard.clear()
    forged = [make_journal_event(kind) for kind in (EventKind.JOB_STATE, EventKind.NODE_MARKED, EventKind.FIRST_STEP)]
    stores.ingest(make_batch(events=[(10 * (place + 1), event) for place, event in enumerate(forged)]))
    assert heard == []
    assert len(stores.events()) == 1 + len(forged)


def test_listeners_get_the_first_completed_step_once_and_it_is_not_stored(
    stores: Stores, heard: list[tuple[str, str]]
) -> None:
    stores.add_with_attempt()
    heard.clear()
    stores.ingest(make_batch(progress=[(10, make_progress()), (20, make_progress(5, seconds=3))]))
    assert heard == []  # the first reported step is where training starts, not a completed one
    stores.ingest(make_batch(progress=[(30, make_progress(6, seconds=4)), (40, make_progress(7, seconds=5))]))
    stores.ingest(make_batch(progress=[(50, make_progress(8, seconds=6))]))
    assert heard == [("job-1", "step.first")]
    assert [event.kind for event in stores.events()] == ["job.submitted"]


def test_the_first_step_has_the_workers_time(stores: Stores) -> None:
    stores.add_with_attempt()
    found: list[News] = []
    stores.database.listen(found.append)
    stores.ingest(make_batch(progress=[(10, make_progress(1, seconds=3)), (20, make_progress(2, seconds=7))]))
    ((job_id, event),) = found[0]
    assert (job_id, event.at, event.attempt, event.evidence) == ("job-1", at(7), 1, {"step": 2})
