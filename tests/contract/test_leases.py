from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.queueing.lease import Lease
from tests.builders import NOW
from tests.contract.worlds import World, acquire


def test_a_lease_is_refused_while_another_holder_has_it(world: World) -> None:
    acquire(world, holder="one")
    assert world.leases.acquire("local", "two", ttl_s=100) is None


def test_two_clusters_have_separate_leases(world: World) -> None:
    first, second = acquire(world, "a", "one"), acquire(world, "b", "two")
    assert (first.cluster, second.cluster) == ("a", "b")


def test_an_expired_lease_can_be_acquired(world: World) -> None:
    old = acquire(world, holder="one", ttl_s=10)
    world.pass_time(9)
    assert world.leases.acquire("local", "two", ttl_s=10) is None
    world.pass_time(1)
    new = acquire(world, holder="two", ttl_s=10)
    assert new.token > old.token
    assert not world.leases.renew(old, ttl_s=10)


def test_the_token_rises_with_every_acquisition(world: World) -> None:
    tokens = [acquire(world, holder="one").token]
    tokens.append(acquire(world, holder="one").token)
    world.pass_time(1000)
    tokens.append(acquire(world, holder="two").token)
    world.leases.release(acquire(world, holder="two"))
    tokens.append(acquire(world, holder="one").token)
    assert tokens == sorted(set(tokens))


def test_an_acquisition_ends_an_earlier_lease_of_the_same_holder(world: World) -> None:
    old, new = acquire(world, holder="one"), acquire(world, holder="one")
    assert not world.leases.renew(old, ttl_s=10)
    assert world.leases.renew(new, ttl_s=10)


def test_a_renewed_lease_lasts_from_its_renewal(world: World) -> None:
    lease = acquire(world, ttl_s=10)
    world.pass_time(8)
    assert world.leases.renew(lease, ttl_s=10)
    world.pass_time(8)
    assert world.leases.acquire("local", "two", ttl_s=10) is None
    world.pass_time(3)
    acquire(world, holder="two")


def test_an_expired_lease_is_not_renewed(world: World) -> None:
    lease = acquire(world, ttl_s=10)
    world.pass_time(10)
    assert not world.leases.renew(lease, ttl_s=10)
    acquire(world, holder="two")


def test_a_released_lease_can_be_acquired_at_once(world: World) -> None:
    lease = acquire(world, holder="one")
    world.leases.release(lease)
    assert not world.leases.renew(lease, ttl_s=10)
    assert acquire(world, holder="two").token > lease.token


def test_releasing_a_lost_lease_does_not_affect_its_new_holder(world: World) -> None:
    old = acquire(world, holder="one")
    world.pass_time(1000)
    new = acquire(world, holder="two")
    world.leases.release(old)
    assert world.leases.renew(new, ttl_s=10)
    assert world.leases.acquire("local", "one", ttl_s=10) is None


def test_an_unknown_lease_is_not_valid(world: World) -> None:
    """After a restore of an older database, a holder may have a lease that the database does not know."""
    unknown = Lease(cluster="local", holder="one", token=7)
    assert not world.leases.renew(unknown, ttl_s=10)
    world.leases.release(unknown)
    with pytest.raises(LeaseLost):
        world.supervisor(unknown).note({"job-1": "too late"}, NOW)
    acquire(world, holder="two")


def test_a_lease_needs_the_right_holder_and_token(world: World) -> None:
    """After a restore of an older database, a token may be given out a second time."""
    mine = acquire(world, holder="one")
    other = replace(mine, holder="two")
    assert not world.leases.renew(other, ttl_s=10)
    world.leases.release(other)
    with pytest.raises(LeaseLost):
        world.supervisor(other).note({"job-1": "too late"}, NOW)
    assert world.leases.renew(mine, ttl_s=10)


def test_all_leases_are_listed_also_expired_ones(world: World) -> None:
    assert list(world.leases.leases()) == []
    first = acquire(world, "a", "one", ttl_s=10)
    world.pass_time(20)
    second = acquire(world, "b", "two", ttl_s=10)
    found = {standing.lease.cluster: (standing.lease, standing.expired) for standing in world.leases.leases()}
    assert found == {"a": (first, True), "b": (second, False)}


def test_a_service_with_two_leases_fewer_requests_one_and_gets_it(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    assert world.leases.acquire("a", "two", ttl_s=100) is None
    assert [_requested(world, lease) for lease in mine] == [True, False]
    assert not world.leases.hand_over(mine[1], ttl_s=100)
    assert world.leases.hand_over(mine[0], ttl_s=100)
    assert world.leases.renew(mine[0], ttl_s=100) is None
    assert not world.leases.hand_over(mine[0], ttl_s=100)
    given = next(each for each in world.leases.leases() if each.lease.cluster == "a")
    assert (given.lease.holder, given.lease.token, given.requester) == ("two", mine[0].token + 1, None)
    assert acquire(world, "a", "two").token > given.lease.token
    assert not _requested(world, mine[1])


def test_a_lease_that_was_handed_over_expires(world: World) -> None:
    mine = [acquire(world, name, "one", ttl_s=1000) for name in ("a", "b")]
    world.leases.acquire("a", "two", ttl_s=100)
    assert world.leases.hand_over(mine[0], ttl_s=10)
    assert world.leases.acquire("a", "one", ttl_s=10) is None
    world.pass_time(10)
    acquire(world, "a", "one")


def test_a_service_with_one_lease_fewer_requests_none(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    acquire(world, "c", "two")
    world.leases.acquire("a", "two", ttl_s=100)
    assert not _requested(world, mine[0])


def test_a_hand_over_counts_again(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    world.leases.acquire("a", "two", ttl_s=100)
    acquire(world, "c", "two")
    assert _requested(world, mine[0])
    assert not world.leases.hand_over(mine[0], ttl_s=100)
    assert not _requested(world, mine[0]), "the request is dropped"


def test_an_old_request_is_ignored(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    world.leases.acquire("a", "two", ttl_s=20)
    world.pass_time(9)
    assert _requested(world, mine[0])
    world.pass_time(1)
    assert not _requested(world, mine[0])
    assert not world.leases.hand_over(mine[0], ttl_s=100)
    world.leases.acquire("b", "three", ttl_s=100)
    assert _requested(world, mine[1])


def test_the_first_of_two_requests_stands(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b")]
    world.leases.acquire("a", "two", ttl_s=100)
    world.leases.acquire("a", "three", ttl_s=100)
    world.leases.acquire("b", "two", ttl_s=100)
    assert [each.requester for each in world.leases.leases()] == ["two", None]
    assert world.leases.hand_over(mine[0], ttl_s=100)


def test_a_service_does_not_request_a_cluster_that_it_has_given_up(world: World) -> None:
    mine = [acquire(world, name, "one") for name in ("a", "b", "c")]
    world.leases.acquire("a", "two", ttl_s=100, given_up={"a"})
    assert not _requested(world, mine[0])


def test_a_release_drops_the_requests_of_its_holder(world: World) -> None:
    acquired = [acquire(world, name, "one") for name in ("a", "b", "c")]
    own = acquire(world, "d", "two")
    world.leases.acquire("a", "two", ttl_s=100)
    assert _requested(world, acquired[0])
    world.leases.release(own)
    assert not _requested(world, acquired[0])


def _requested(world: World, lease: Lease) -> bool:
    renewal = world.leases.renew(lease, ttl_s=100)
    assert renewal is not None
    return renewal.requested
