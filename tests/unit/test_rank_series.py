"""Samples of ranks, laid out over time."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.observation.rank_series import MOST_SERIES, MOST_STARTS, ReplicaSample, build_series
from tests.builders import NOW
from tests.examples import examples
from trainer.contract.resource_sample import RankSample


def taken(second: float, *ranks: RankSample, attempt: int = 1, generation: int = 1) -> ReplicaSample:
    return ReplicaSample(at=NOW + timedelta(seconds=second), attempt=attempt, generation=generation, ranks=ranks)


def used(rank: int, memory: int | None = None, cores: float | None = None) -> RankSample:
    return RankSample(rank=rank, memory_bytes=memory, cpu_cores=cores)


def test_no_samples_give_an_empty_series() -> None:
    series = build_series([], points=10)
    assert (series.at, series.samples, series.ranks, series.starts, series.newest) == ([], {}, 0, [], [])


def test_a_part_of_the_time_has_the_highest_memory_and_the_mean_load() -> None:
    series = build_series([taken(0, used(0, 5, 1.0)), taken(4, used(0, 9, 0.5)), taken(10, used(0, 7, None))], points=2)
    assert series.samples == {0: [used(0, 9, 0.75), used(0, 7)]}
    assert series.at == [NOW + timedelta(seconds=2.5), NOW + timedelta(seconds=7.5)]


def test_ranks_of_several_nodes_share_the_times() -> None:
    series = build_series([taken(0, used(0, 1)), taken(0.4, used(1, 2)), taken(60, used(1, 3))], points=10)
    assert series.samples == {0: [used(0, 1), None], 1: [used(1, 2), used(1, 3)]}


def test_one_rank_may_be_selected() -> None:
    samples = [taken(0, used(0, 1), used(1, 2))]
    assert set(build_series(samples, points=10, rank=1).samples) == {1}
    assert build_series(samples, points=10, rank=7).samples == {}


def test_of_many_ranks_those_with_the_most_memory_are_shown() -> None:
    series = build_series([taken(0, *(used(rank, rank) for rank in range(100)))], points=10)
    assert list(series.samples) == list(range(100 - MOST_SERIES, 100))
    assert series.ranks == 100
    assert [each.sample.rank for each in series.newest] == list(range(100))


def test_each_generation_starts_with_its_first_sample() -> None:
    samples = [
        taken(9, used(0, 1), attempt=2),
        taken(5, used(0, 1), generation=2),
        taken(0, used(0, 1)),
        taken(6, used(1, 1), generation=2),
    ]
    starts = [(each.attempt, each.generation, each.at) for each in build_series(samples, points=10).starts]
    assert starts == [(a, g, NOW + timedelta(seconds=s)) for a, g, s in ((1, 1, 0), (1, 2, 5), (2, 1, 9))]
    many = build_series([taken(g, used(0, 1), generation=g) for g in range(1000)], points=10).starts
    assert [each.generation for each in many] == list(range(1000 - MOST_STARTS, 1000))


def test_only_ranks_of_the_newest_generation_have_a_newest_sample() -> None:
    samples = [
        taken(0, used(0, 1), used(1, 1), used(2, 1)),
        taken(2, used(0, 2), used(1, 2), generation=2),
        taken(4, used(0, 3), generation=2),
    ]
    newest = build_series(samples, points=10).newest
    assert [(each.sample.rank, each.sample.memory_bytes) for each in newest] == [(0, 3), (1, 2)]


@given(
    samples=st.lists(
        st.builds(
            taken,
            st.floats(-1e9, 1e9),
            st.builds(used, st.integers(0, 40), st.none() | st.integers(0, 2**53), st.none() | st.floats(0, 1e6)),
            attempt=st.integers(1, 3),
            generation=st.integers(0, 2**53),
        ),
        max_size=60,
    ),
    points=st.integers(1, 30),
)
@settings(max_examples=examples(50, 2000))
def test_any_samples_are_laid_out_in_order_and_within_the_limits(samples: list[ReplicaSample], points: int) -> None:
    series = build_series(samples, points=points)
    assert len(series.at) <= points
    assert list(series.at) == sorted(set(series.at))
    assert len(series.samples) <= MOST_SERIES
    assert all(len(each) == len(series.at) for each in series.samples.values())
    highest = [each.memory_bytes for one in samples for each in one.ranks if each.rank in series.samples]
    shown = [each.memory_bytes for one in series.samples.values() for each in one if each is not None]
    assert max((each for each in highest if each is not None), default=None) == max(
        (each for each in shown if each is not None), default=None
    ), "no peak is lost"
