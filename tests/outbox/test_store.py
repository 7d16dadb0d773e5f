"""The outbox in the store, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete

from orchestrator.domain.errors import InvalidTransition
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.ports.supervision import Change
from orchestrator.store import sqlite
from orchestrator.store.engine import Database
from orchestrator.store.lookups import append_events
from orchestrator.store.records import Delivery
from orchestrator.store.tables import JobRow
from tests.builders import make_attempt, make_batch, make_event, make_journal_event
from tests.outbox.conftest import HOOKS
from tests.outbox.world import World


def test_each_webhook_gets_the_events_that_it_and_the_job_select(world: World) -> None:
    world.submit("job-1", notify=["pager", "ops"])
    world.submit("job-2")
    world.happen("one runs", job_id="job-1")
    world.happen("two runs", job_id="job-2")
    world.happen("one is back", job_id="job-1", kind="recovery.attempt")
    world.happen("two is back", job_id="job-2", kind="recovery.attempt")
    assert world.owed("pager") == ["one runs"]
    assert world.owed("ops") == ["one runs", "one is back"]
    assert len(world.owed("audit")) == 6


def test_events_from_journals_are_queued_for_webhooks(world: World) -> None:
    world.submit(notify=["ops"])
    world.apply(world.jobs.get("job-1"), make_attempt())
    told = [make_journal_event("recovery.in_place", sentence="back"), make_journal_event("worker.failed")]
    world.ingest(make_batch(events=[(10 * n, event) for n, event in enumerate(told, 1)]))
    world.ingest(make_batch(events=[(10 * n, event) for n, event in enumerate(told, 1)]))
    assert world.owed("ops") == ["back"]


def test_requests_and_the_supervisors_changes_count(world: World) -> None:
    world.submit()
    world.request()
    world.apply(world.jobs.get("job-1"), make_attempt(), make_event(sentence="starts"))
    kinds = [delivery.event.event.kind for delivery in _claim_all(world)]
    assert kinds == ["job.submitted", "suspend.requested", "job.state"]


def test_an_event_and_its_messages_are_written_atomically(world: World) -> None:
    world.submit()

    def fail_later() -> None:
        with world.database.write() as session:
            append_events(session, [("job-1", make_event(sentence="never"))])
            raise RuntimeError("the end of the process")

    with pytest.raises(RuntimeError):
        fail_later()
    assert (len(world.events()), len(world.rows())) == (1, 1)
    world.apply(world.jobs.get("job-1"), make_attempt(state=AttemptState.LOST))
    with pytest.raises(InvalidTransition):
        world.supervisor.apply(
            Change(job=world.jobs.get("job-1"), attempt=make_attempt(), events=[make_event(sentence="never")])
        )
    assert (len(world.events()), len(world.rows())) == (1, 1)


def test_a_service_without_webhooks_queues_no_messages(url: str) -> None:
    database = Database(url)
    quiet = World(database)
    quiet.submit(notify=["pager"])
    quiet.happen("runs")
    assert quiet.rows() == []
    database.dispose()


def test_messages_of_a_job_are_claimed_in_order(world: World) -> None:
    world.submit("job-1")
    world.submit("job-2")
    world.happen("a", "b", job_id="job-1")
    first = world.claim()
    assert [one.event.event.sentence for one in first] == ["job-1 came", "job-2 came"]
    assert list(world.claim()) == []
    world.outbox.delivered(first[0])
    assert [one.event.event.sentence for one in world.claim()] == ["a"]


def test_a_failed_message_delays_later_ones_of_its_job_for_ten_minutes(world: World) -> None:
    world.submit()
    world.happen("later")
    (first,) = world.claim()
    world.outbox.failed(first, "it answered 500", retry_in_s=3600)
    world.pass_time(590)
    assert list(world.claim()) == []
    world.pass_time(11)
    assert [one.event.event.sentence for one in world.claim()] == ["later"]


def test_an_unsettled_claim_is_due_again_with_the_same_id(world: World) -> None:
    world.submit()
    (first,) = world.claim()
    world.pass_time(59)
    assert list(world.claim()) == []
    world.pass_time(2)
    (again,) = world.claim()
    assert (again.message_id, again.tries, first.tries) == (first.message_id, 2, 1)
    assert again.age_s >= 61


def test_an_expired_claim_cannot_settle_a_message(world: World) -> None:
    world.submit()
    (slept,) = world.claim()
    world.pass_time(61)
    (fresh,) = world.claim()
    world.outbox.failed(slept, "too late", retry_in_s=None)
    (row,) = world.rows()
    assert (row.last_error, row.due_at is None) == (None, False)
    world.outbox.delivered(fresh)
    world.outbox.failed(fresh, "too late", retry_in_s=1)
    (row,) = world.rows()
    assert (row.last_error, row.due_at, row.delivered_at is None) == (None, None, False)


def test_services_that_claim_at_one_time_never_get_the_same_message(url: str) -> None:
    databases = [Database(url, subscriptions=HOOKS) for _ in range(4)]
    worlds = [World(database) for database in databases]
    for number in range(40):
        worlds[0].submit(f"job-{number}")

    def drain(world: World) -> list[str]:
        got: list[str] = []
        while True:
            batch = world.claim(limit=3)
            if not batch and world.outbox.oldest_due_s("audit") is None:
                return got
            got += [one.message_id for one in batch]

    with ThreadPoolExecutor(4) as threads:
        got = [one for found in threads.map(drain, worlds) for one in found]
    assert len(got) == len(set(got)) == 40
    for database in databases:
        database.dispose()


def test_claiming_nothing_does_not_need_a_write_lock(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    database = Database(url, subscriptions=HOOKS)
    idle = World(database)
    world.submit()
    with world.database.write() as session:
        append_events(session, [("job-1", make_event())])
        assert list(idle.claim("pager")) == []
    database.dispose()


def test_the_oldest_age_counts_only_due_messages(world: World) -> None:
    assert world.outbox.oldest_due_s("audit") is None
    world.submit()
    world.pass_time(100)
    oldest = world.outbox.oldest_due_s("audit")
    assert oldest is not None
    assert 100 <= oldest < 130
    assert world.outbox.oldest_due_s("pager") is None
    world.claim()
    assert world.outbox.oldest_due_s("audit") is None


def test_old_undelivered_messages_are_swept(world: World) -> None:
    for job_id in ("job-1", "job-2"):
        world.submit(job_id)
    first, _ = world.claim()
    world.outbox.delivered(first)
    world.pass_time(8.9 * 86400)
    assert world.outbox.sweep(owed_s=9 * 86400) == 0
    world.pass_time(0.2 * 86400)
    assert world.outbox.sweep(owed_s=9 * 86400) == 1
    assert [row.job_id for row in world.rows()] == ["job-1"]


def test_a_jobs_messages_are_deleted_with_it(world: World) -> None:
    world.submit()
    with world.database.write() as session:
        session.execute(delete(JobRow))
    assert world.rows() == []


def _claim_all(world: World) -> list[Delivery]:
    claimed: list[Delivery] = []
    while batch := world.claim():
        for one in batch:
            world.outbox.delivered(one)
        claimed += batch
    return claimed
