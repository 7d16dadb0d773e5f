"""How many streams a caller may hold open."""

from __future__ import annotations

from orchestrator.identity.stream_limit import StreamLimit


def test_one_caller_has_so_many_and_leaves_the_others_theirs() -> None:
    limit = StreamLimit(2)
    assert [limit.take("alice") for _ in range(3)] == [True, True, False]
    assert limit.take("bob")
    limit.leave("alice")
    assert [limit.take("alice") for _ in range(2)] == [True, False]


def test_whoever_has_left_is_forgotten() -> None:
    limit = StreamLimit(1)
    for _ in range(3):
        assert limit.take("alice")
        limit.leave("alice")
    assert limit._taken == {}
