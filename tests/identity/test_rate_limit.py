"""Rate limits by caller."""

from __future__ import annotations

import pytest

from orchestrator.identity import rate_limit
from orchestrator.identity.rate_limit import RateLimit


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_a_burst_of_ten_seconds_is_allowed(hand: Hand) -> None:
    meter = RateLimit(2, monotonic=hand)
    assert [meter.take("alice") for _ in range(20)] == [0.0] * 20
    assert meter.take("alice") == 0.5
    hand.now += 0.25
    assert meter.take("alice") == 0.25, "refused requests do not count"
    hand.now += 0.25
    assert meter.take("alice") == 0.0
    assert meter.take("alice") == 0.5


def test_a_long_pause_fills_the_bucket_only_once(hand: Hand) -> None:
    meter = RateLimit(1, monotonic=hand)
    meter.take("alice")
    hand.now += 10_000
    assert [meter.take("alice") for _ in range(11)] == [0.0] * 10 + [1.0]


def test_callers_have_separate_limits(hand: Hand) -> None:
    meter = RateLimit(0.1, monotonic=hand)
    assert meter.take("alice") == 0.0
    assert meter.take("alice") == 10.0
    assert meter.take("bob") == 0.0


def test_wait_s_does_not_count_a_request(hand: Hand) -> None:
    meter = RateLimit(0.1, monotonic=hand)
    assert [meter.wait_s("alice") for _ in range(3)] == [0.0] * 3
    meter.take("alice")
    assert meter.wait_s("alice") == 10.0


def test_the_number_of_cached_callers_is_bounded(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MOST", 3)
    meter = RateLimit(0.1, monotonic=hand)
    for number in range(3):
        meter.take(f"caller {number}")
    assert meter.take("caller 0") == 10.0
    assert meter.take("caller 3") == 0.0
    assert meter.take("caller 0") == 0.0, "all callers start again with full buckets"
