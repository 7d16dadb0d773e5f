"""Sample order and the assignment of microbatches to ranks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trainer.data.sample_order import draw_windows, permute
from trainer.loop.microbatches import assign_microbatches

sizes, seeds = st.integers(1, 700), st.integers(0, 2**63 - 1)


@given(size=sizes, key=seeds)
@settings(max_examples=examples(20, 200))
def test_every_key_permutes_every_size(size, key):
    assert sorted(permute(np.arange(size), size=size, key=key)) == list(range(size))


@given(size=sizes, seed=seeds, epoch=st.integers(0, 1000))
@settings(max_examples=examples(20, 200))
def test_every_window_occurs_once_per_epoch(size, seed, epoch):
    drawn = draw_windows(first=epoch * size, count=size, num_windows=size, seed=seed)
    assert sorted(drawn) == list(range(size))


@given(size=sizes, seed=seeds, first=st.integers(0, 5000), cut=st.integers(1, 40))
@settings(max_examples=examples(20, 200))
def test_the_order_does_not_depend_on_the_size_of_requests(size, seed, first, cut):
    """The stream has no state: a request gives the same as its parts, also across epochs."""
    whole = draw_windows(first=first, count=40, num_windows=size, seed=seed)
    left = draw_windows(first=first, count=cut, num_windows=size, seed=seed)
    right = draw_windows(first=first + cut, count=40 - cut, num_windows=size, seed=seed)
    assert list(whole) == [*left, *right]


def test_epochs_and_seeds_shuffle_differently():
    def draw(epoch, seed):
        return list(draw_windows(first=epoch * 1000, count=1000, num_windows=1000, seed=seed))

    orders = [draw(0, 1), draw(1, 1), draw(0, 2), list(range(1000))]
    agreements = [sum(x == y for x, y in zip(a, b, strict=True)) for a in orders for b in orders if a is not b]
    assert max(agreements) < 20, "chance leaves about one of a thousand in place"


@given(count=st.integers(1, 60), world_size=st.integers(1, 17))
def test_any_number_of_ranks_divides_the_batch_exactly(count, world_size):
    shares = [assign_microbatches(rank, world_size, count) for rank in range(world_size)]
    real = sorted(share.microbatch for of_rank in shares for share in of_rank if share.weight == 1)
    assert real == list(range(count))
    assert {share.weight for of_rank in shares for share in of_rank} <= {0.0, 1.0}
    assert len({len(of_rank) for of_rank in shares}) == 1, "collectives of ranks must match"
    for rank, of_rank in enumerate(shares):
        assert all(share.microbatch % world_size == rank for share in of_rank if share.weight == 1)
