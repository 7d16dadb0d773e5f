"""Leases on PostgreSQL, among processes that race, sleep and fall silent."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pytest

from orchestrator.domain.errors import LeaseLost, StoreUnavailable
from orchestrator.domain.job.job import Desired
from orchestrator.domain.queueing.lease import Lease
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore, require_lease
from orchestrator.store.lookups import append_events
from tests.builders import make_event
from tests.contract.worlds import SqlWorld, acquire, add_job

ROUNDS = 100


@pytest.fixture
def backend() -> str:
    return "postgresql"


@pytest.fixture
def open_world(url: str) -> Iterator[Callable[[], tuple[Database, SqlWorld]]]:
    """Connects as one more process would."""
    opened: list[Database] = []

    def open_one() -> tuple[Database, SqlWorld]:
        opened.append(Database(url))
        return opened[-1], SqlWorld(opened[-1])

    yield open_one
    for database in opened:
        database.dispose()


OpenWorld = Callable[[], tuple[Database, SqlWorld]]


def test_a_take_over_waits_for_a_guarded_write_in_flight(open_world: OpenWorld) -> None:
    (mine, world), (_, other) = open_world(), open_world()
    add_job(world)
    lease = acquire(world, ttl_s=0.3)
    with ThreadPoolExecutor(1) as thread:
        with mine.write() as session:
            require_lease(session, lease)
            time.sleep(0.4)  # the time is over, the write is not
            taking = thread.submit(other.leases.acquire, "local", "two", ttl_s=60)
            time.sleep(0.3)
            assert not taking.done()
            append_events(session, [("job-1", make_event(sentence="written in time"))])
        taken = taking.result(timeout=10)
    assert taken is not None
    assert taken.token > lease.token
    assert [event.sentence for event in world.events("job-1")][1:] == ["written in time"]
    with pytest.raises(LeaseLost):
        world.supervisor(lease).note({"job-1": "too late"}, make_event().at)


def _hold_the_lease(world: SqlWorld, database: Database) -> Callable[[], object]:
    lease = acquire(world, ttl_s=1)

    def fall_silent() -> None:
        with database.write() as session:
            require_lease(session, lease)
            time.sleep(8)
            append_events(session, [("job-1", make_event(sentence="must not be written"))])

    return fall_silent


def _hold_the_events(world: SqlWorld, database: Database) -> Callable[[], object]:
    def fall_silent() -> None:
        with database.write() as session:
            append_events(session, [("job-1", make_event(sentence="must not be written"))])
            time.sleep(8)

    return fall_silent


def _acquire(world: SqlWorld) -> bool:
    return world.leases.acquire("local", "two", ttl_s=60) is not None


def _request(world: SqlWorld) -> bool:
    return world.jobs.record_request("job-1", Desired(number=1, cancelled=True), make_event())


@pytest.mark.parametrize(("hold", "go_on"), [(_hold_the_lease, _acquire), (_hold_the_events, _request)])
def test_one_that_falls_silent_in_the_middle_of_a_write_holds_the_others_for_seconds_only(
    open_world: OpenWorld,
    hold: Callable[[SqlWorld, Database], Callable[[], object]],
    go_on: Callable[[SqlWorld], bool],
) -> None:
    """As a process does that is stopped (SIGSTOP): its connection stays open, and says nothing."""
    (silent, world), (_, other) = open_world(), open_world()
    add_job(world)
    with ThreadPoolExecutor(1) as thread:
        silence = thread.submit(hold(world, silent))
        time.sleep(1.1)
        began = time.monotonic()
        assert go_on(other)
        assert time.monotonic() - began < 6
        with pytest.raises(StoreUnavailable, match="does not answer"):
            silence.result(timeout=20)
    assert "must not be written" not in [event.sentence for event in other.events("job-1")]


def test_of_two_processes_that_race_for_a_lease_exactly_one_wins(url: str, open_world: OpenWorld) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, answers = spawn.Barrier(2), spawn.Queue()
    racers = [spawn.Process(target=_race, args=(url, name, start, answers)) for name in ("one", "two")]
    for racer in racers:
        racer.start()
    won = dict(answers.get(timeout=120) for _ in racers)
    for racer in racers:
        racer.join(timeout=30)
    for race in range(ROUNDS):
        assert sorted([won["one"][race] is None, won["two"][race] is None]) == [False, True], race
    tokens = [(won["one"][race] or won["two"][race]).token for race in range(ROUNDS)]
    assert tokens[::2] == [1] * (ROUNDS // 2)  # a cluster's first lease
    assert tokens[1::2] == [2] * (ROUNDS // 2)


def _race(url: str, holder: str, start: Barrier, answers: Queue[tuple[str, list[Lease | None]]]) -> None:
    """Each cluster is raced for twice: when nobody had it before, and when its lease was given up."""
    database = Database(url)
    leases = SqlLeaseStore(database)
    won: list[Lease | None] = []
    for race in range(ROUNDS):
        start.wait(timeout=60)
        won.append(leases.acquire(f"cluster-{race // 2}", holder, ttl_s=600))
        start.wait(timeout=60)
        lease = won[-1]
        if lease is not None and race % 2 == 0:
            leases.release(lease)
    answers.put((holder, won))
    database.dispose()
