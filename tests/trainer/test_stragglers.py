"""Slow ranks: the times that ranks share, their standings, and what is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.loop.stragglers import (
    EVERY_STEPS,
    LEAST_S,
    LEAST_WINDOWS,
    SLOW_RATIO,
    OwnTimes,
    Stragglers,
    rank_standings,
)

seconds = st.floats(min_value=1e-4, max_value=1e4)


def shared_by(rank, world_size, times):
    """Return the times that a rank shares after steps of these (computing, data) seconds."""
    own = OwnTimes(rank, world_size)
    for step, (computed_s, data_s) in enumerate(times, start=1):
        places = own.share(step)
        assert places == () or len(places) == 2 * world_size
        own.add(computed_s, data_s)
    return own.share(EVERY_STEPS)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=6))
def test_the_sum_of_shared_times_has_each_ranks_mean(times):
    world_size, steps = len(times), EVERY_STEPS - 1
    shared = [shared_by(rank, world_size, [times[rank]] * steps) for rank in range(world_size)]
    standings = rank_standings([sum(place) for place in zip(*shared, strict=True)])
    for standing, (computed_s, data_s) in zip(standings, times, strict=True):
        assert standing.computed_s == pytest.approx(computed_s)
        assert standing.data_s == pytest.approx(data_s)
    ratios = sorted(standing.ratio for standing in standings)
    assert ratios[(world_size - 1) // 2] == pytest.approx(1), "the median stands at one"
    assert max(standings, key=lambda s: s.ratio).rank in [
        rank for rank, own in enumerate(times) if sum(own) == max(map(sum, times))
    ] or ratios[-1] == pytest.approx(ratios[-2])


def test_first_steps_do_not_count():
    assert shared_by(0, 2, [(100.0, 0.0)] * 2 + [(1.0, 0.5)] * 7)[:2] == pytest.approx((1.0, 0.5))
    assert shared_by(1, 2, [(100.0, 0.0)] * 2) == (0.0,) * 4
    assert rank_standings(shared_by(1, 2, [(1.0, 0.5)] * 9)) == [], "rank 0 has shared nothing"


def test_a_single_rank_shares_no_times():
    assert shared_by(0, 1, [(1.0, 0.0)] * 9) == ()


def looks(*slow_ratios, every_s=LEAST_S):
    """The ranks that are reported at each look, while rank 1 has these ratios."""
    stragglers = Stragglers()
    reported = []
    for number, ratio in enumerate(slow_ratios):
        standings = rank_standings([1.0, 0.0, ratio, 0.0, 1.0, 0.0])
        reported.append([standing.rank for standing in stragglers.look(standings, now=number * every_s)])
    return reported


def test_a_rank_that_stays_slow_is_reported_once():
    assert looks(*[2.0] * (LEAST_WINDOWS + 3)) == [[]] * (LEAST_WINDOWS - 1) + [[1]] + [[]] * 3


def test_a_rank_that_recovers_is_not_reported():
    assert looks(*[2.0, 2.0, 1.1] * 4) == [[]] * 12


def test_a_rank_must_be_slow_for_a_minute():
    assert looks(*[2.0] * 10, every_s=LEAST_S / 8) == [[]] * 8 + [[1], []]


def test_small_differences_are_not_reported():
    assert looks(*[SLOW_RATIO - 0.01] * 8) == [[]] * 8


def test_of_two_ranks_the_slower_is_compared_with_the_faster():
    standings = rank_standings([1.0, 0.0, 2.5, 0.5])
    assert [standing.ratio for standing in standings] == [1.0, 3.0]
    assert "rank 1 takes 3.0 times as long" in str(standings[1])
