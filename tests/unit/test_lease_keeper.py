"""The lease of a cluster: taken, renewed, lost and released, on a clock that the tests advance."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.errors import LeaseLost, StoreUnavailable
from orchestrator.domain.queueing.lease import Lease, Renewal
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.lease_keeper import LeaseHolder, LeaseKeeper
from tests.fakes.memory_leases import MemoryLeaseStore

TTL_S = 10.0


class Situation:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.leases = MemoryLeaseStore(self.store, self.clock)
        self.lively = True

    def keeper(self, name: str = "one", cluster: str = "local", *, ttl_s: float = TTL_S, **fields: Any) -> LeaseKeeper:
        holder = LeaseHolder(name, ttl_s=ttl_s, monotonic=self.clock.monotonic)
        return LeaseKeeper(self.leases, cluster, holder, **{"lively": lambda: self.lively, **fields})


@pytest.fixture
def here() -> Situation:
    return Situation()


def test_without_a_lease_require_raises(here: Situation) -> None:
    keeper = here.keeper()
    keeper.renew()
    assert not keeper.held
    with pytest.raises(LeaseLost, match="local"):
        keeper.require()


def test_only_one_keeper_holds_the_lease(here: Situation) -> None:
    one, two = here.keeper("one"), here.keeper("two")
    assert one.take() is not None
    assert two.take() is None
    assert (one.held, two.held) == (True, False)
    one.require()


def test_each_renewal_extends_the_lease_from_its_own_time(here: Situation) -> None:
    keeper = here.keeper()
    keeper.take()
    for _ in range(20):
        here.clock.advance(TTL_S - 1)
        keeper.renew()
        keeper.require()
    here.clock.advance(TTL_S)
    assert not keeper.held


def test_a_pause_beyond_the_lease_is_noticed(here: Situation) -> None:
    """After SIGSTOP and SIGCONT, no renewal has failed and no other service has the lease."""
    keeper = here.keeper()
    keeper.take()
    here.clock.advance(TTL_S + 0.001)
    with pytest.raises(LeaseLost):
        keeper.require()
    keeper.renew()
    assert not keeper.held


def test_the_lease_counts_from_before_the_call_to_the_store(here: Situation) -> None:
    """The answer may be late: the store counts from when it handled the call."""
    keeper = here.keeper()
    here.store.tables.leases.clear()
    acquire, renew = here.leases.acquire, here.leases.renew

    def slow_acquire(cluster: str, holder: str, **options: Any) -> Lease | None:
        lease = acquire(cluster, holder, **options)
        here.clock.advance(7)
        return lease

    def slow_renew(lease: Lease, *, ttl_s: float) -> Renewal | None:
        renewed = renew(lease, ttl_s=ttl_s)
        here.clock.advance(7)
        return renewed

    here.leases.acquire, here.leases.renew = slow_acquire, slow_renew  # type: ignore[method-assign]
    keeper.take()
    here.clock.advance(2.9)
    assert keeper.held
    keeper.renew()  # asked at 9.9, answered at 16.9
    here.clock.advance(2.9)
    assert keeper.held
    here.clock.advance(0.2)
    assert not keeper.held


def test_a_refused_renewal_loses_the_lease_at_once(here: Situation) -> None:
    keeper = here.keeper()
    lease = keeper.take()
    assert lease is not None
    here.leases.release(lease)
    here.keeper("two").take()
    keeper.renew()
    assert not keeper.held


def test_the_lease_survives_an_outage_of_the_store_until_it_expires(here: Situation) -> None:
    keeper = here.keeper()
    keeper.take()
    here.store.available = False
    here.clock.advance(TTL_S - 1)
    with pytest.raises(StoreUnavailable):
        keeper.renew()
    assert keeper.held
    here.clock.advance(1)
    assert not keeper.held


def test_a_lease_without_progress_is_not_renewed(here: Situation) -> None:
    keeper, other = here.keeper("one"), here.keeper("two")
    keeper.take()
    here.lively = False
    here.clock.advance(TTL_S - 1)
    keeper.renew()
    here.clock.advance(1)
    assert not keeper.held
    assert other.take() is not None


def test_closing_releases_the_lease_at_once(here: Situation) -> None:
    keeper, other = here.keeper("one"), here.keeper("two")
    keeper.open()
    keeper.take()
    keeper.close()
    assert not keeper.held
    assert other.take() is not None
    keeper.close()
    assert other.held


def test_closing_during_an_outage_of_the_store_raises_nothing(here: Situation) -> None:
    keeper = here.keeper()
    keeper.take()
    here.store.available = False
    keeper.close()
    assert not keeper.held


def test_a_lease_taken_after_closing_is_released(here: Situation) -> None:
    keeper, other = here.keeper("one"), here.keeper("two")
    keeper.close()
    assert keeper.take() is None
    assert not keeper.held
    assert other.take() is not None


def test_a_lease_is_renewed_in_the_background_despite_errors(here: Situation) -> None:
    renewed, troubles = threading.Semaphore(0), iter([StoreUnavailable("silent"), RuntimeError("a defect")])
    renew = here.leases.renew

    def counted(lease: Lease, *, ttl_s: float) -> Renewal | None:
        renewed.release()
        trouble = next(troubles, None)
        if trouble is not None:
            raise trouble
        return renew(lease, ttl_s=ttl_s)

    here.leases.renew = counted  # type: ignore[method-assign]
    keeper = here.keeper(ttl_s=0.04)
    keeper.take()
    with capture_logs() as lines:
        keeper.open()
        for _ in range(8):
            assert renewed.acquire(timeout=300)
        keeper.close()
    assert [line["event"] for line in lines] == ["lease not renewed"] * 2
    assert not keeper.held


def test_a_late_refusal_of_an_earlier_lease_does_not_lose_the_present_one(here: Situation) -> None:
    keeper = here.keeper()
    keeper.take()
    here.clock.advance(TTL_S)
    renew = here.leases.renew

    def overtaken(lease: Lease, *, ttl_s: float) -> Renewal | None:
        renewed = renew(lease, ttl_s=ttl_s)
        here.leases.renew = renew  # type: ignore[method-assign]
        keeper.take()  # by the thread of the passes, before the answer reaches the keeper's thread
        return renewed

    here.leases.renew = overtaken  # type: ignore[method-assign]
    keeper.renew()
    assert keeper.held
    keeper.renew()
    assert keeper.held


def test_a_late_renewal_of_an_earlier_lease_does_not_shorten_the_present_one(here: Situation) -> None:
    keeper = here.keeper()
    keeper.take()
    renew = here.leases.renew

    def overtaken(lease: Lease, *, ttl_s: float) -> Renewal | None:
        renewed = renew(lease, ttl_s=ttl_s)
        here.clock.advance(TTL_S - 1)
        keeper.take()
        return renewed

    here.leases.renew = overtaken  # type: ignore[method-assign]
    keeper.renew()
    here.clock.advance(TTL_S - 1)
    assert keeper.held


def test_losing_an_earlier_lease_does_not_lose_the_present_one(here: Situation) -> None:
    keeper = here.keeper()
    first, second = keeper.take(), keeper.take()
    keeper.lose(first)
    assert keeper.held
    keeper.lose(second)
    assert not keeper.held


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system's steady clock does not stop")
def test_the_lease_expires_while_the_machine_sleeps(here: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    since_boot = {time.CLOCK_BOOTTIME: 1000.0}
    monkeypatch.setattr(time, "clock_gettime", since_boot.__getitem__)
    keeper = LeaseKeeper(here.leases, "local", LeaseHolder("one", ttl_s=TTL_S))
    keeper.take()
    assert keeper.held
    since_boot[time.CLOCK_BOOTTIME] += TTL_S
    assert not keeper.held


def test_each_lost_lease_is_counted_and_logged_once(here: Situation) -> None:
    losses: list[None] = []
    keeper = here.keeper(on_loss=lambda: losses.append(None))
    keeper.take()
    with capture_logs() as lines:
        keeper.lose()
        keeper.lose()
        assert len(losses) == 1
        keeper.take()
        here.clock.advance(TTL_S + 1)  # unnoticed until the next one is taken
        keeper.take()
        keeper.close()
    assert len(losses) == 2, "the released lease is not lost"
    assert [line["event"] for line in lines].count("another service may supervise the cluster now") == 2


def test_a_requested_lease_is_handed_over_if_the_other_service_holds_two_fewer(here: Situation) -> None:
    requests: list[None] = []
    keepers = [here.keeper("one", name, on_request=lambda: requests.append(None)) for name in ("local", "b")]
    other = here.keeper("two")
    for keeper in keepers:
        keeper.take()
    assert other.take() is None
    keepers[1].renew()
    assert (requests, keepers[1].hand_over()) == ([], False), "nobody requests this one"
    assert not keepers[0].hand_over(), "no renewal has seen the request yet"
    with capture_logs() as lines:
        keepers[0].renew()
        assert len(requests) == 1
        assert keepers[0].hand_over()
    assert "another service may supervise the cluster now" not in {line["event"] for line in lines}, "it is not lost"
    assert not keepers[0].held
    assert not keepers[0].hand_over()
    assert other.take() is not None
    keepers[1].renew()
    assert [keeper.held for keeper in keepers] == [False, True]


def test_a_lease_that_is_not_handed_over_is_kept_and_not_asked_for_again(here: Situation) -> None:
    keepers = [here.keeper("one", name) for name in ("local", "b")]
    lease, _ = (keeper.take() for keeper in keepers)
    assert here.keeper("two").take() is None
    here.keeper("two", "c").take()
    keepers[0].renew()
    assert not keepers[0].hand_over()
    keepers[0].require()
    assert lease in [each.lease for each in here.leases.leases()]
    here.leases.hand_over = pytest.fail  # type: ignore[method-assign, assignment]
    keepers[0].renew()
    assert not keepers[0].hand_over()


def test_a_lost_lease_is_not_handed_over(here: Situation) -> None:
    requests: list[None] = []
    keeper, other = (here.keeper("one", name, on_request=lambda: requests.append(None)) for name in ("local", "b"))
    keeper.take()
    other.take()
    here.keeper("two").take()
    keeper.renew()
    assert requests
    keeper.lose()
    here.leases.hand_over = pytest.fail  # type: ignore[method-assign, assignment]
    assert not keeper.hand_over()


def test_after_a_hand_over_without_an_answer_the_lease_is_taken_again(here: Situation) -> None:
    """The store may have transferred it, or not."""
    losses: list[None] = []
    keepers = [here.keeper("one", name, on_loss=lambda: losses.append(None)) for name in ("local", "b")]
    for keeper in keepers:
        keeper.take()
    here.keeper("two").take()
    keepers[0].renew()
    here.store.available = False
    with capture_logs() as lines:
        assert keepers[0].hand_over()
    assert [line["event"] for line in lines] == ["lease not handed over"]
    assert not keepers[0].held
    here.store.available = True
    assert keepers[0].take() is not None
    assert losses == []


def test_a_service_that_cannot_supervise_a_cluster_does_not_request_it_for_an_hour(here: Situation) -> None:
    for name in ("local", "b", "c"):
        here.leases.acquire(name, "one", ttl_s=10**6)
    holder = LeaseHolder("two", ttl_s=TTL_S, monotonic=here.clock.monotonic)
    keeper = LeaseKeeper(here.leases, "local", holder)
    holder.give_up("local")

    def requested() -> bool:
        keeper.take()
        return any(each.requester == "two" for each in here.leases.leases())

    assert not requested()
    here.clock.advance(3599)
    assert not requested()
    here.clock.advance(1)
    assert requested()


def test_an_ending_service_requests_nothing(here: Situation) -> None:
    for name in ("local", "b"):
        here.leases.acquire(name, "one", ttl_s=100)
    holder = LeaseHolder("two", ttl_s=TTL_S, monotonic=here.clock.monotonic)
    LeaseKeeper(here.leases, "c", holder).close()
    LeaseKeeper(here.leases, "local", holder).take()
    assert {each.requester for each in here.leases.leases()} == {None}
