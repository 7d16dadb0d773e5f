"""Who holds the others up: what ranks tell, how they stand, and when it is worth a word."""

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


def told_by(rank, world_size, times):
    """What a rank tells after steps of these (computing, data) seconds."""
    own = OwnTimes(rank, world_size)
    for step, (computed_s, data_s) in enumerate(times, start=1):
        places = own.tell(step)
        assert places == () or len(places) == 2 * world_size
        own.add(computed_s, data_s)
    return own.tell(EVERY_STEPS)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=6))
def test_the_sum_of_what_all_tell_holds_each_ranks_mean(times):
    world_size, steps = len(times), EVERY_STEPS - 1
    all_told = [told_by(rank, world_size, [times[rank]] * steps) for rank in range(world_size)]
    standings = rank_standings([sum(place) for place in zip(*all_told, strict=True)])
    for standing, (computed_s, data_s) in zip(standings, times, strict=True):
        assert standing.computed_s == pytest.approx(computed_s)
        assert standing.data_s == pytest.approx(data_s)
    ratios = sorted(standing.ratio for standing in standings)
    assert ratios[(world_size - 1) // 2] == pytest.approx(1), "the median stands at one"
    assert max(standings, key=lambda s: s.ratio).rank in [
        rank for rank, own in enumerate(times) if sum(own) == max(map(sum, times))
    ] or ratios[-1] == pytest.approx(ratios[-2])


def test_first_steps_teach_nothing():
    assert told_by(0, 2, [(100.0, 0.0)] * 2 + [(1.0, 0.5)] * 7)[:2] == pytest.approx((1.0, 0.5))
    assert told_by(1, 2, [(100.0, 0.0)] * 2) == (0.0,) * 4
    assert rank_standings(told_by(1, 2, [(1.0, 0.5)] * 9)) == [], "rank 0 has told nothing"


def test_one_rank_has_nobody_to_be_compared_with():
    assert told_by(0, 1, [(1.0, 0.0)] * 9) == ()


def looks(*slow_ratios, every_s=LEAST_S):
    """What is told at each look, of rank 1 with such ratios."""
    stragglers = Stragglers()
    told = []
    for number, ratio in enumerate(slow_ratios):
        standings = rank_standings([1.0, 0.0, ratio, 0.0, 1.0, 0.0])
        told.append([standing.rank for standing in stragglers.look(standings, now=number * every_s)])
    return told


def test_a_rank_that_stays_slow_is_told_once():
    assert looks(*[2.0] * (LEAST_WINDOWS + 3)) == [[]] * (LEAST_WINDOWS - 1) + [[1]] + [[]] * 3


def test_a_rank_that_recovers_is_not_told():
    assert looks(*[2.0, 2.0, 1.1] * 4) == [[]] * 12


def test_short_looks_have_to_last():
    assert looks(*[2.0] * 10, every_s=LEAST_S / 8) == [[]] * 8 + [[1], []]


def test_ordinary_unevenness_is_nothing():
    assert looks(*[SLOW_RATIO - 0.01] * 8) == [[]] * 8


def test_of_two_ranks_the_slower_one_is_compared_with_the_quicker_one():
    standings = rank_standings([1.0, 0.0, 2.5, 0.5])
    assert [standing.ratio for standing in standings] == [1.0, 3.0]
    assert "rank 1 takes 3.0 times as long" in str(standings[1])
