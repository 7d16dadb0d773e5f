"""How many streams a caller may hold open."""

from __future__ import annotations

from orchestrator.identity.seats import Seats


def test_one_caller_has_so_many_and_leaves_the_others_theirs() -> None:
    seats = Seats(2)
    assert [seats.take("alice") for _ in range(3)] == [True, True, False]
    assert seats.take("bob")
    seats.leave("alice")
    assert [seats.take("alice") for _ in range(2)] == [True, False]


def test_whoever_has_left_is_forgotten() -> None:
    seats = Seats(1)
    for _ in range(3):
        assert seats.take("alice")
        seats.leave("alice")
    assert seats._taken == {}
