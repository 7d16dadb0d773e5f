from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.queueing.lease import Lease
from tests.builders import NOW
from tests.contract.worlds import World, acquire


def test_a_lease_is_refused_while_another_one_holds_it(world: World) -> None:
    acquire(world, holder="one")
    assert world.leases.acquire("local", "two", ttl_s=100) is None


def test_two_clusters_are_leased_by_themselves(world: World) -> None:
    first, second = acquire(world, "a", "one"), acquire(world, "b", "two")
    assert (first.cluster, second.cluster) == ("a", "b")


def test_a_lease_is_to_be_had_when_its_time_is_over(world: World) -> None:
    old = acquire(world, holder="one", ttl_s=10)
    world.pass_time(9)
    assert world.leases.acquire("local", "two", ttl_s=10) is None
    world.pass_time(1)
    new = acquire(world, holder="two", ttl_s=10)
    assert new.token > old.token
    assert not world.leases.renew(old, ttl_s=10)


def test_the_token_rises_with_every_acquisition_the_holders_own_included(world: World) -> None:
    tokens = [acquire(world, holder="one").token]
    tokens.append(acquire(world, holder="one").token)
    world.pass_time(1000)
    tokens.append(acquire(world, holder="two").token)
    world.leases.release(acquire(world, holder="two"))
    tokens.append(acquire(world, holder="one").token)
    assert tokens == sorted(set(tokens))


def test_an_acquisition_ends_the_holders_own_earlier_lease(world: World) -> None:
    old, new = acquire(world, holder="one"), acquire(world, holder="one")
    assert not world.leases.renew(old, ttl_s=10)
    assert world.leases.renew(new, ttl_s=10)


def test_a_renewed_lease_holds_from_the_renewal_on(world: World) -> None:
    lease = acquire(world, ttl_s=10)
    world.pass_time(8)
    assert world.leases.renew(lease, ttl_s=10)
    world.pass_time(8)
    assert world.leases.acquire("local", "two", ttl_s=10) is None
    world.pass_time(3)
    acquire(world, holder="two")


def test_a_lease_whose_time_was_over_is_not_renewed_though_nobody_took_it(world: World) -> None:
    lease = acquire(world, ttl_s=10)
    world.pass_time(10)
    assert not world.leases.renew(lease, ttl_s=10)
    acquire(world, holder="two")


def test_a_lease_that_was_given_up_is_to_be_had_at_once(world: World) -> None:
    lease = acquire(world, holder="one")
    world.leases.release(lease)
    assert not world.leases.renew(lease, ttl_s=10)
    assert acquire(world, holder="two").token > lease.token


def test_giving_up_a_lost_lease_costs_its_new_holder_nothing(world: World) -> None:
    old = acquire(world, holder="one")
    world.pass_time(1000)
    new = acquire(world, holder="two")
    world.leases.release(old)
    assert world.leases.renew(new, ttl_s=10)
    assert world.leases.acquire("local", "one", ttl_s=10) is None


def test_a_lease_that_the_store_has_never_heard_of_is_none(world: World) -> None:
    """As after a restore of an older database."""
    unknown = Lease(cluster="local", holder="one", token=7)
    assert not world.leases.renew(unknown, ttl_s=10)
    world.leases.release(unknown)
    with pytest.raises(LeaseLost):
        world.supervisor(unknown).note({"job-1": "too late"}, NOW)
    acquire(world, holder="two")


def test_a_token_that_was_given_twice_is_its_newest_holders(world: World) -> None:
    """As after a restore of an older database, whose tokens count from there."""
    mine = acquire(world, holder="one")
    other = replace(mine, holder="two")
    assert not world.leases.renew(other, ttl_s=10)
    world.leases.release(other)
    with pytest.raises(LeaseLost):
        world.supervisor(other).note({"job-1": "too late"}, NOW)
    assert world.leases.renew(mine, ttl_s=10)


def test_every_cluster_that_was_ever_leased_is_listed_with_its_holder(world: World) -> None:
    assert list(world.leases.leases()) == []
    first = acquire(world, "a", "one", ttl_s=10)
    world.pass_time(20)
    second = acquire(world, "b", "two", ttl_s=10)
    found = {standing.lease.cluster: (standing.lease, standing.expired) for standing in world.leases.leases()}
    assert found == {"a": (first, True), "b": (second, False)}
