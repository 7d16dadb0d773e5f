"""The loop that runs passes: under its lease, despite errors, soon after a request."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.errors import LeaseLost, StoreUnavailable
from orchestrator.domain.queueing.lease import Lease
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.supervisor import loop as supervisor_loop
from orchestrator.supervisor.lease_keeper import LeaseHolder
from orchestrator.supervisor.loop import SupervisorLoop, choose_pause_s
from orchestrator.supervisor.reconcile import Reconciler
from orchestrator.telemetry.metrics import Metrics
from tests.elastic.harness import wait_for
from tests.fakes.memory_leases import MemoryLeaseStore


class SystemTime:
    def now(self) -> datetime:
        return datetime.now(UTC)


class Passes:
    """A fake Reconciler. `during` is called in each pass with its number."""

    def __init__(self, during: Callable[[int], None] = lambda number: None) -> None:
        self.leases: list[Lease] = []
        self.require_lease: list[Callable[[], None]] = []
        self.count = 0
        self.answered = True
        self.idle = False
        self.made = threading.Semaphore(0)
        self._during = during

    def build(self, lease: Lease, require_lease: Callable[[], None]) -> Reconciler:
        self.leases.append(lease)
        self.require_lease.append(require_lease)
        return cast(Reconciler, self)

    def reconcile(self) -> datetime | None:
        self.count += 1
        self.made.release()
        self._during(self.count)
        return None

    def wait(self, timeout_s: float = 300) -> None:
        assert self.made.acquire(timeout=timeout_s), "no pass was made"


def _loop(
    leases: MemoryLeaseStore,
    passes: Passes,
    holder: str | LeaseHolder = "one",
    *,
    cluster: str = "local",
    poll_s: float = 0.01,
    lease_s: float = 4,
    tidy: Callable[[], None] = lambda: None,
) -> SupervisorLoop:
    service = LeaseHolder(holder, ttl_s=lease_s) if isinstance(holder, str) else holder
    return SupervisorLoop(
        cluster, leases, passes.build, SystemTime(), Metrics(), holder=service, poll_s=poll_s, tidy=tidy
    )


@pytest.fixture
def leases() -> MemoryLeaseStore:
    return MemoryLeaseStore(MemoryStore(), SystemTime())


def test_a_second_loop_takes_over_as_soon_as_the_first_one_stops(leases: MemoryLeaseStore) -> None:
    first, second = Passes(), Passes()
    one, two = _loop(leases, first, "one"), _loop(leases, second, "two")
    one.start()
    first.wait()
    two.start()
    for _ in range(100):
        first.wait()
    assert second.count == 0
    ready, words = two.alive()
    assert ready
    assert "another service supervises cluster local" in words
    one.stop()
    second.wait()
    with pytest.raises(LeaseLost):
        first.require_lease[0]()
    two.stop()
    assert [lease.holder for lease in second.leases] == ["two"]


def test_after_a_lost_lease_passes_continue_under_a_new_one(leases: MemoryLeaseStore) -> None:
    def lose_it_once(number: int) -> None:
        if number == 3:
            raise LeaseLost("another one has it")

    passes = Passes(lose_it_once)
    loop = _loop(leases, passes)
    loop.start()
    for _ in range(5):
        passes.wait()
    loop.stop()
    assert [lease.token for lease in passes.leases] == [1, 2]


@pytest.mark.parametrize("trouble", [StoreUnavailable("silent"), RuntimeError("a defect")])
@pytest.mark.parametrize("behind", [False, True], ids=["in a pass", "in what follows it"])
def test_errors_end_neither_the_loop_nor_its_lease(leases: MemoryLeaseStore, trouble: Exception, behind: bool) -> None:
    def always(*_: int) -> None:
        raise trouble

    passes = Passes() if behind else Passes(always)
    loop = _loop(leases, passes, tidy=always if behind else lambda: None)
    with capture_logs():
        loop.start()
        for _ in range(10):
            passes.wait()
        assert loop.alive()[0]
        loop.stop()
    assert len(passes.leases) == 1


def test_a_lease_whose_supervision_cannot_begin_is_released_and_taken_again(leases: MemoryLeaseStore) -> None:
    passes = Passes()
    failures = iter([OSError(errno.EMFILE, "Too many open files"), StoreUnavailable("silent")])

    def build(lease: Lease, require_lease: Callable[[], None]) -> Reconciler:
        for failure in failures:
            raise failure
        return passes.build(lease, require_lease)

    holder = LeaseHolder("one", ttl_s=4)
    loop = SupervisorLoop("local", leases, build, SystemTime(), Metrics(), holder=holder, poll_s=0.01)
    with capture_logs():
        loop.start()
        passes.wait()
        loop.stop()
    assert [lease.token for lease in passes.leases] == [3]


def test_a_cluster_that_does_not_answer_one_service_is_released_to_another(
    leases: MemoryLeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_loop, "_BLIND_S", 0.2)
    blind, seeing = Passes(), Passes()
    blind.answered = False
    one, two = _loop(leases, blind, "one", lease_s=1), _loop(leases, seeing, "two", lease_s=1)
    with capture_logs() as logs:
        one.start()
        blind.wait()
        two.start()
        seeing.wait()
        for _ in range(50):
            seeing.wait()
        one.stop()
        two.stop()
    assert [lease.holder for lease in seeing.leases] == ["two"]
    assert "released the lease: the cluster does not answer here" in {each["event"] for each in logs}


def test_a_second_service_gets_half_of_the_clusters(leases: MemoryLeaseStore) -> None:
    names = ("a", "b", "c", "d")
    one, two = LeaseHolder("one", ttl_s=1), LeaseHolder("two", ttl_s=1)
    first, second = ({name: Passes() for name in names} for _ in range(2))
    ones = [_loop(leases, first[name], one, cluster=name, poll_s=3600) for name in names]
    twos = [_loop(leases, second[name], two, cluster=name, poll_s=3600) for name in names]

    def shares() -> Counter[str]:
        return Counter(each.lease.holder for each in leases.leases() if not each.expired)

    with capture_logs() as logs:
        for loop in ones:
            loop.start()
        for name in names:
            first[name].wait()
        for loop in twos:
            loop.start()
        wait_for(lambda: sum(passes.count > 0 for passes in second.values()) == 2, "two hand-overs")
        assert shares() == {"one": 2, "two": 2}
        for loop in ones + twos:
            loop.stop()
    assert [each["event"] for each in logs].count("handed the cluster over to another service") == 2
    assert "another service may supervise the cluster now" not in {each["event"] for each in logs}


def test_a_cluster_that_does_not_answer_is_not_requested_again(
    leases: MemoryLeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_loop, "_BLIND_S", 0.0)
    holder, blind = LeaseHolder("one", ttl_s=1), Passes()
    blind.answered = False
    loop = _loop(leases, blind, holder)
    with capture_logs():
        loop.start()
        blind.wait()
        wait_for(lambda: bool(holder.given_up()), "release")
        loop.stop()
    assert holder.given_up() == {"local"}


@pytest.mark.parametrize(("trouble", "given_up"), [(StoreUnavailable("silent"), set()), (OSError(), {"local"})])
def test_a_cluster_whose_supervision_cannot_begin_is_not_requested_again(
    leases: MemoryLeaseStore, trouble: Exception, given_up: set[str]
) -> None:
    failures, passes, holder = iter([trouble]), Passes(), LeaseHolder("one", ttl_s=1)

    def build(lease: Lease, require_lease: Callable[[], None]) -> Reconciler:
        for failure in failures:
            raise failure
        return passes.build(lease, require_lease)

    loop = SupervisorLoop("local", leases, build, SystemTime(), Metrics(), holder=holder, poll_s=0.01)
    with capture_logs():
        loop.start()
        passes.wait()
        loop.stop()
    assert holder.given_up() == given_up


def test_a_request_starts_a_pass_at_once(leases: MemoryLeaseStore) -> None:
    passes = Passes()
    loop = _loop(leases, passes, poll_s=3600)
    loop.start()
    for _ in range(5):
        passes.wait()
        loop.wake()
    loop.stop()


def test_a_stopped_loop_releases_the_lease(leases: MemoryLeaseStore) -> None:
    passes = Passes()
    loop = _loop(leases, passes)
    loop.start()
    passes.wait()
    loop.stop()
    assert leases.acquire("local", "two", ttl_s=1) is not None
    ready, words = loop.alive()
    assert not ready
    assert "made no progress" in words


def test_a_waiting_loop_tries_to_take_the_lease_more_often_than_it_polls(leases: MemoryLeaseStore) -> None:
    assert leases.acquire("local", "another", ttl_s=0.2) is not None
    passes = Passes()
    loop = _loop(leases, passes, poll_s=3600, lease_s=1)
    loop.start()
    passes.wait()
    loop.stop()


def test_a_loop_with_a_hanging_pass_is_not_ready(leases: MemoryLeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    passes = Passes(lambda number: cast(None, go_on.wait(300)))
    loop = _loop(leases, passes)
    loop.start()
    passes.wait()
    assert loop.alive()[0]
    monkeypatch.setattr(supervisor_loop, "_LIVELY_S", 0.0)
    ready, words = loop.alive()
    go_on.set()
    loop.stop()
    assert not ready
    assert "made no progress" in words


@pytest.mark.parametrize(
    ("idle", "worked_s", "ahead_s", "pause_s"),
    [
        (False, 0.1, None, 0.5),
        (False, 0.1, 0.2, 0.2),
        (False, 0.1, -1.0, 0.0),
        (True, 0.001, None, 0.5),
        (True, 0.05, None, 2.0),  # many jobs: a fortieth of the time
        (True, 0.05, 0.2, 2.0),
        (True, 1.0, None, 5.0),
        (True, 0.05, 7.0, 2.0),
    ],
)
def test_passes_that_look_at_no_job_leave_most_of_the_time_to_others(
    idle: bool, worked_s: float, ahead_s: float | None, pause_s: float
) -> None:
    assert choose_pause_s(0.5, ahead_s, worked_s=worked_s, idle=idle) == pytest.approx(pause_s)
