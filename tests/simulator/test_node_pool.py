"""Which nodes an attempt gets."""

from __future__ import annotations

from orchestrator.simulator.node_pool import NodePool


def test_the_first_free_nodes_are_taken_and_can_be_taken_again() -> None:
    pool = NodePool(3, 0)
    assert pool.take(2, ()) == ["n000000", "n000001"]
    assert pool.take(2, ()) is None
    assert pool.take(1, ()) == ["n000002"]  # what was refused took nothing
    pool.give_back(["n000001"])
    assert pool.take(1, ()) == ["n000001"]


def test_a_failed_node_is_not_taken_until_it_is_repaired() -> None:
    pool = NodePool(2, 0)
    pool.fail("n000000")
    assert pool.up == 1
    assert pool.take(2, ()) is None
    pool.repair("n000000")
    assert pool.take(2, ()) == ["n000000", "n000001"]


def test_avoided_nodes_stay_free_for_other_attempts() -> None:
    pool = NodePool(2, 0)
    assert pool.take(2, ["n000000"]) is None
    assert pool.take(1, ["n000000"]) == ["n000001"]
    assert pool.take(1, ()) == ["n000000"]


def test_unlimited_spares_replace_failed_and_avoided_nodes() -> None:
    pool = NodePool(2, None)
    pool.fail("n000000")
    assert pool.up == 2
    assert pool.population == ["n000002", "n000001"]
    assert pool.take(2, ["n000001"]) == ["n000002", "n000003"]
