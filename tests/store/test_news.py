"""Listeners hear of what was committed, once, and of nothing else."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.event import EventKind
from orchestrator.store.engine import News
from tests.builders import at, make_attempt, make_batch, make_event, make_job, make_journal_event, make_progress
from tests.store.harness import Stores


@pytest.fixture
def heard(stores: Stores) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def listen(news: News) -> None:
        found.extend((job_id, event.kind) for job_id, event in news)

    stores.database.listen(listen)
    return found


def test_events_are_heard_once_they_are_committed(stores: Stores, heard: list[tuple[str, str]]) -> None:
    job = stores.add()
    stores.apply(job, make_attempt(), make_event("attempt.state"), make_event("node.marked"))
    assert heard == [("job-1", "job.submitted"), ("job-1", "attempt.state"), ("job-1", "node.marked")]


def test_what_is_rolled_back_is_not_heard(stores: Stores, heard: list[tuple[str, str]]) -> None:
    with pytest.raises(NotFound):
        stores.apply(make_job("absent"), None, make_event())
    assert heard == []


def test_a_change_that_every_agent_tells_is_heard_once(stores: Stores, heard: list[tuple[str, str]]) -> None:
    stores.add_with_attempt()
    heard.clear()
    for replica in (0, 1):
        told = make_journal_event("restart.in_place", generation=2, evidence={"seconds": 0.4})
        stores.ingest(make_batch(replica=replica, events=[(50, told)]))
    stores.ingest(make_batch(replica=1, events=[(50, told)]))
    later = make_journal_event("group.shrunk", generation=3, evidence={"seconds": 2.0})
    stores.ingest(make_batch(replica=0, events=[(50, told), (90, later)]))
    assert heard == [("job-1", "restart.in_place"), ("job-1", "group.shrunk")]
    assert [event.kind for event in stores.events()].count("restart.in_place") == 2


def test_an_agent_cannot_speak_in_the_services_name(stores: Stores, heard: list[tuple[str, str]]) -> None:
    stores.add_with_attempt()
    heard.clear()
    forged = [make_journal_event(kind) for kind in (EventKind.JOB_STATE, EventKind.NODE_MARKED, EventKind.FIRST_STEP)]
    stores.ingest(make_batch(events=[(10 * (place + 1), event) for place, event in enumerate(forged)]))
    assert heard == []
    assert len(stores.events()) == 1 + len(forged)


def test_the_first_completed_step_is_heard_once_and_not_stored(stores: Stores, heard: list[tuple[str, str]]) -> None:
    stores.add_with_attempt()
    heard.clear()
    stores.ingest(make_batch(progress=[(10, make_progress()), (20, make_progress(5, seconds=3))]))
    assert heard == []  # where it begins is no step that it made
    stores.ingest(make_batch(progress=[(30, make_progress(6, seconds=4)), (40, make_progress(7, seconds=5))]))
    stores.ingest(make_batch(progress=[(50, make_progress(8, seconds=6))]))
    assert heard == [("job-1", "step.first")]
    assert [event.kind for event in stores.events()] == ["job.submitted"]


def test_it_is_told_with_its_own_time(stores: Stores) -> None:
    stores.add_with_attempt()
    found: list[News] = []
    stores.database.listen(found.append)
    stores.ingest(make_batch(progress=[(10, make_progress(1, seconds=3)), (20, make_progress(2, seconds=7))]))
    ((job_id, event),) = found[0]
    assert (job_id, event.at, event.attempt, event.evidence) == ("job-1", at(7), 1, {"step": 2})
