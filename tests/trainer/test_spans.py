"""Arithmetic of intervals, compared with counting integers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainer.loop.intervals import covered, merge, uncovered

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair))), max_size=8)


def moments(several):
    return {moment for begin, end in several for moment in range(begin, end)}


@given(spans)
def test_overlapping_time_counts_once(several):
    assert covered(several) == len(moments(several))


@given(spans)
def test_merged_spans_are_apart_and_in_order(several):
    merged = merge(several)
    assert all(begin < end for begin, end in merged)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
    assert moments(merged) == moments(several)


@given(spans, spans)
def test_covered_time_does_not_count(several, by):
    assert uncovered(several, by) == len(moments(several) - moments(by))
