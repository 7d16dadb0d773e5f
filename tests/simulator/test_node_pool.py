"""Which nodes an attempt gets."""

from __future__ import annotations

from orchestrator.simulator.node_pool import NodePool


def test_the_first_free_nodes_are_taken_and_come_back() -> None:
    pool = NodePool(3, 0)
    assert pool.take(2, ()) == ["n000000", "n000001"]
    assert pool.take(2, ()) is None
    assert pool.take(1, ()) == ["n000002"]  # what was refused took nothing
    pool.give_back(["n000001"])
    assert pool.take(1, ()) == ["n000001"]


def test_a_node_that_is_down_is_not_given_out_before_it_is_repaired() -> None:
    pool = NodePool(2, 0)
    pool.fail("n000000")
    assert pool.up == 1
    assert pool.take(2, ()) is None
    pool.repair("n000000")
    assert pool.take(2, ()) == ["n000000", "n000001"]


def test_avoided_nodes_stay_free_for_others() -> None:
    pool = NodePool(2, 0)
    assert pool.take(2, ["n000000"]) is None
    assert pool.take(1, ["n000000"]) == ["n000001"]
    assert pool.take(1, ()) == ["n000000"]


def test_unlimited_spares_stand_in_for_what_failed_and_for_what_is_avoided() -> None:
    pool = NodePool(2, None)
    pool.fail("n000000")
    assert pool.up == 2
    assert pool.population == ["n000002", "n000001"]
    assert pool.take(2, ["n000001"]) == ["n000002", "n000003"]
