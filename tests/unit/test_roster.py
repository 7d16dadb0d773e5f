"""The roster: what wakes a job, and that nothing is forgotten on an error."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import timedelta

import pytest

from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.checks import CHECK_S
from orchestrator.ports.supervision import Change, Supervised
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.roster import Roster
from tests.builders import make_attempt, make_event, make_job, make_spec
from tests.fakes.memory_leases import MemoryLeaseStore


class Store(MemorySupervisorStore):
    """A store that fails as often as `failures` says, after the first reads that `spares` counts."""

    failures = 0

    def supervised(self, cluster: str, among: Set[str]) -> Sequence[Supervised]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no answer")
        return super().supervised(cluster, among)


class Desk:
    def __init__(self) -> None:
        self.clock, self.memory = VirtualClock(), MemoryStore()
        lease = MemoryLeaseStore(self.memory, self.clock).acquire("local", "test", ttl_s=10**6)
        assert lease is not None
        self.store = Store(self.memory, self.clock, lease)
        self.roster = Roster("local", self.store)

    def add(self, job_id: str, state: JobState = JobState.QUEUED, **spec: object) -> None:
        job = make_job(job_id, state=state, created_at=self.clock.now(), spec=make_spec(**spec))
        self.memory.add(job, idempotency_key=None, digest="", event=make_event())

    def request(self, job_id: str, **desired: object) -> None:
        number = self.memory.get(job_id).desired.number + 1
        assert self.memory.record_request(job_id, Desired(number=number, **desired), make_event())  # type: ignore[arg-type]

    def look(self) -> list[str]:
        self.roster.refresh()
        self.roster.ring(self.clock.now())
        return [each.job.id for each in self.roster.due()]

    def sleep(self, *job_ids: str, seconds: float = 10**6) -> None:
        now = self.clock.now()
        for job_id in job_ids:
            self.roster.sleep(job_id, until=now + timedelta(seconds=seconds), now=now)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.add("job-1")
    desk.add("job-2")
    return desk


def test_the_first_look_is_at_every_job(desk: Desk) -> None:
    assert desk.look() == ["job-1", "job-2"]


def test_a_job_is_due_until_it_sleeps(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1")
    assert [desk.look(), desk.look()] == [["job-2"], ["job-2"]]
    assert desk.roster.asleep == {"job-1"}


def test_an_event_wakes_its_job(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1", "job-2")
    assert desk.look() == []
    desk.request("job-2", suspended=True)
    assert desk.look() == ["job-2"]


def test_a_new_job_is_due(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1", "job-2")
    desk.add("job-3")
    desk.add("job-4", cluster="other")
    assert desk.look() == ["job-3"]
    assert [each.id for each in desk.roster.claimants] == ["job-1", "job-2", "job-3"]


def test_an_alarm_wakes_its_job(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1", seconds=20)
    desk.sleep("job-2", seconds=10)
    assert desk.roster.next_alarm_at == desk.clock.now() + timedelta(seconds=10)
    desk.clock.advance(10)
    assert desk.look() == ["job-2"]
    assert not desk.roster.is_only_checked("job-2")
    desk.sleep("job-2", seconds=30)
    desk.clock.advance(10)
    assert desk.look() == ["job-1"], "its earlier alarm counts no more"


def test_a_check_wakes_a_job_without_an_alarm(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1", "job-2")
    desk.clock.advance(0.75 * CHECK_S - 1)
    assert desk.look() == []
    desk.clock.advance(0.25 * CHECK_S + 1)
    assert desk.look() == ["job-1", "job-2"]
    assert desk.roster.is_only_checked("job-1")
    desk.request("job-1", suspended=True)
    desk.look()
    assert not desk.roster.is_only_checked("job-1"), "it has an event"


def test_a_new_job_without_an_event_is_found_in_time(desk: Desk) -> None:
    desk.look()
    desk.sleep("job-1", "job-2")
    desk.memory.tables.put_job(make_job("job-3", created_at=desk.clock.now()))
    assert desk.look() == []
    desk.clock.advance(CHECK_S)
    assert "job-3" in desk.look()
    assert desk.roster.is_only_checked("job-3")


def test_a_job_that_comes_to_rest_or_is_deleted_is_forgotten(desk: Desk) -> None:
    desk.look()
    ended = desk.memory.get("job-1").to(JobState.CANCELLED, reason="x", now=desk.clock.now())
    desk.store.apply(Change(job=ended, attempt=None, events=[make_event()]))
    assert desk.look() == ["job-2"]
    assert [each.id for each in desk.roster.claimants] == ["job-2"]
    desk.request("job-1", retry_number=1)
    assert desk.look() == ["job-1", "job-2"]


def test_live_attempts_are_known_with_their_replicas(desk: Desk) -> None:
    for job_id, state in (("job-1", AttemptState.RUNNING), ("job-2", AttemptState.LOST)):
        attempt = make_attempt(job_id, state=state, nodes="1:3")
        desk.store.apply(Change(job=desk.memory.get(job_id), attempt=attempt, events=[make_event()]))
    desk.look()
    assert desk.roster.live() == {AttemptKey("job-1", 1): 3}
    assert desk.roster.awake_attempts() == {AttemptKey("job-1", 1)}
    desk.sleep("job-1")
    assert desk.roster.awake_attempts() == set()


def test_the_version_rises_only_with_what_decides_who_may_start(desk: Desk) -> None:
    desk.look()
    before = desk.roster.version
    desk.store.note({"job-1": "waits"}, desk.clock.now())
    desk.roster.wake(["job-1"])
    desk.look()
    assert desk.roster.version == before
    desk.request("job-1", suspended=True)
    desk.look()
    assert desk.roster.version == before + 1


@pytest.mark.parametrize("lost", [1, 2])
def test_a_store_that_fails_loses_no_change(desk: Desk, lost: int) -> None:
    desk.look()
    desk.sleep("job-1", "job-2")
    desk.request("job-1", suspended=True)
    desk.store.failures = lost
    for _ in range(lost):
        with pytest.raises(StoreUnavailable):
            desk.look()
    assert desk.look() == ["job-1"]
    (claimant,) = [each for each in desk.roster.claimants if each.id == "job-1"]
    assert claimant.suspended


def test_a_store_that_fails_at_first_loses_no_job(desk: Desk) -> None:
    desk.store.failures = 1
    with pytest.raises(StoreUnavailable):
        desk.look()
    assert desk.look() == ["job-1", "job-2"]
