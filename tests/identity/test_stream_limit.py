"""The limit on the open streams of a caller."""

from __future__ import annotations

from orchestrator.identity.stream_limit import StreamLimit


def test_each_caller_has_its_own_stream_limit() -> None:
    limit = StreamLimit(2)
    assert [limit.take("alice") for _ in range(3)] == [True, True, False]
    assert limit.take("bob")
    limit.leave("alice")
    assert [limit.take("alice") for _ in range(2)] == [True, False]


def test_a_caller_without_streams_takes_no_memory() -> None:
    limit = StreamLimit(1)
    for _ in range(3):
        assert limit.take("alice")
        limit.leave("alice")
    assert limit._taken == {}
