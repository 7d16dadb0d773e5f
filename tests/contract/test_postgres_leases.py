"""Leases on PostgreSQL, with processes that compete or are stopped."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from orchestrator.domain.errors import LeaseLost, StoreUnavailable
from orchestrator.domain.job.job import Desired
from orchestrator.domain.queueing.lease import Lease
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore, require_lease
from orchestrator.store.lookups import append_events
from tests.builders import make_event
from tests.contract.worlds import SqlWorld, acquire, add_job
from tests.elastic.harness import wait_for
from tests.examples import examples

ROUNDS = examples(20, 100)
PATIENCE_S = 300


@pytest.fixture
def backend() -> str:
    return "postgresql"


@pytest.fixture
def open_world(url: str) -> Iterator[Callable[[], tuple[Database, SqlWorld]]]:
    """Opens one more connection, like another process."""
    with ExitStack() as stack:

        def open_one() -> tuple[Database, SqlWorld]:
            database = stack.enter_context(Database(url))
            return database, SqlWorld(database)

        yield open_one


OpenWorld = Callable[[], tuple[Database, SqlWorld]]


def test_a_takeover_waits_for_a_guarded_write(open_world: OpenWorld) -> None:
    (mine, world), (theirs, other) = open_world(), open_world()
    add_job(world)
    lease = acquire(world)
    with ThreadPoolExecutor(1) as thread:
        with mine.write() as session:
            require_lease(session, lease)
            taking = thread.submit(_acquire, other)
            wait_for(lambda: _is_blocked(theirs) or taking.done(), "takeover that waits")
            assert not taking.done()
            append_events(session, [("job-1", make_event(sentence="written in time"))])
        taken = taking.result(timeout=PATIENCE_S)
    assert taken.token > lease.token
    assert [event.sentence for event in world.events("job-1")][1:] == ["written in time"]
    with pytest.raises(LeaseLost):
        world.supervisor(lease).note({"job-1": "too late"}, make_event().at)


def _is_blocked(database: Database) -> bool:
    with database.read() as session:
        waiting = "datname = current_database() AND wait_event_type = 'Lock'"
        return bool(session.scalar(text(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")))


def _hold_lease(session: Session, lease: Lease) -> None:
    require_lease(session, lease)


def _hold_events(session: Session, lease: Lease) -> None:
    append_events(session, [("job-1", make_event(sentence="must not be written"))])


def _acquire(world: SqlWorld) -> Lease:
    """Take over the lease. The same holder need not wait until it expires."""
    return acquire(world)


def _request(world: SqlWorld) -> bool:
    return world.jobs.record_request("job-1", Desired(number=1, cancelled=True), make_event())


@pytest.mark.parametrize(("hold", "work"), [(_hold_lease, _acquire), (_hold_events, _request)])
def test_a_process_that_is_stopped_within_a_write_blocks_others_for_seconds_only(
    open_world: OpenWorld,
    hold: Callable[[Session, Lease], None],
    work: Callable[[SqlWorld], object],
) -> None:
    """PostgreSQL ends a session that is idle within a transaction, as after SIGSTOP, and releases its locks."""
    (stopped, world), (_, other) = open_world(), open_world()
    add_job(world)
    lease = acquire(world)

    def write() -> None:
        with stopped.write() as session:
            hold(session, lease)
            assert work(other)
            append_events(session, [("job-1", make_event(sentence="must not be written"))])

    with pytest.raises(StoreUnavailable, match="does not answer"):
        write()
    assert "must not be written" not in [event.sentence for event in other.events("job-1")]


def test_hand_overs_at_the_same_time_do_not_overshoot(open_world: OpenWorld) -> None:
    """Two services with two leases each are asked by one without any. Only the first gives one."""
    (first, world), (_, other), (watching, asking) = open_world(), open_world(), open_world()
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    theirs = [acquire(other, name, "two") for name in ("c", "d")]
    for lease in (mine[0], theirs[0]):
        assert asking.leases.acquire(lease.cluster, f"three of {lease.cluster}", ttl_s=100) is None
    with watching.write() as session:
        session.execute(text("UPDATE leases SET requester = 'three' WHERE requester IS NOT NULL"))
    with ThreadPoolExecutor(2) as threads:
        with first.write() as session:  # both find the row locked, and wait
            require_lease(session, mine[0])
            given = [
                threads.submit(where.leases.hand_over, lease, ttl_s=100)
                for where, lease in ((world, mine[0]), (other, theirs[0]))
            ]
            wait_for(lambda: _is_blocked(watching) or any(each.done() for each in given), "hand-over that waits")
        moved = [each.result(timeout=PATIENCE_S) for each in given]
    assert sorted(moved) == [False, True]
    shares = Counter(each.lease.holder for each in asking.leases.leases())
    assert sorted(shares.values()) == [1, 1, 2]


@pytest.mark.long
def test_only_one_of_two_processes_acquires_a_lease(url: str, open_world: OpenWorld) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, answers = spawn.Barrier(2), spawn.Queue()
    racers = [spawn.Process(target=_race, args=(url, name, start, answers)) for name in ("one", "two")]
    for racer in racers:
        racer.start()
    won = dict(answers.get(timeout=PATIENCE_S) for _ in racers)
    for racer in racers:
        racer.join(timeout=PATIENCE_S)
    for race in range(ROUNDS):
        assert sorted([won["one"][race] is None, won["two"][race] is None]) == [False, True], race
    tokens = [(won["one"][race] or won["two"][race]).token for race in range(ROUNDS)]
    assert tokens[::2] == [1] * (ROUNDS // 2)  # a cluster's first lease
    assert tokens[1::2] == [2] * (ROUNDS // 2)


def _race(url: str, holder: str, start: Barrier, answers: Queue[tuple[str, list[Lease | None]]]) -> None:
    """Each cluster's lease is acquired twice: first when it is new, then after it was released."""
    won: list[Lease | None] = []
    with Database(url) as database:
        leases = SqlLeaseStore(database)
        for race in range(ROUNDS):
            start.wait(timeout=PATIENCE_S)
            won.append(leases.acquire(f"cluster-{race // 2}", holder, ttl_s=600))
            start.wait(timeout=PATIENCE_S)
            lease = won[-1]
            if lease is not None and race % 2 == 0:
                leases.release(lease)
    answers.put((holder, won))
