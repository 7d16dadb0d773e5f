"""The sampler for scripts equals DistributedSampler, and gives each sample once if the number of ranks changes."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.trainer.harness import read_lines, start_group
from trainer.script.sampler import ElasticSampler
from trainer.supervised import Supervised


def dataset(length):
    return TensorDataset(torch.arange(length))


def group(length, world_size, batch_size, **options):
    return [
        ElasticSampler(dataset(length), batch_size=batch_size, num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]


def cut(indices, size):
    return [indices[place : place + size] for place in range(0, len(indices), size)]


@given(
    length=st.integers(1, 60),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 9),
)
def test_without_restarts_it_equals_distributed_sampler(length, world_size, epoch, shuffle, seed):
    for rank, own in enumerate(group(length, world_size, 2, shuffle=shuffle, seed=seed)):
        theirs = DistributedSampler(dataset(length), world_size, rank, shuffle=shuffle, seed=seed)
        theirs.set_epoch(epoch)
        own.set_epoch(epoch)
        assert list(own) == list(theirs)
        assert len(own) == len(theirs)


@given(
    length=st.integers(1, 80),
    lives=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=6),
    drop_last=st.booleans(),
)
def test_each_sample_occurs_once_per_epoch_through_any_restarts(length, lives, drop_last):
    """`lives` are the ranks, the samples of each rank per step, and the steps until the restart; the last has none."""
    if drop_last:
        length += 20  # one step of the largest group
    seen, epochs, state = {0: Counter(), 1: Counter()}, [], None
    for number, (world_size, batch_size, steps) in enumerate(lives):
        samplers = group(length, world_size, batch_size, drop_last=drop_last)
        if state is not None:
            for sampler in samplers:
                sampler.load_state_dict(state)
        is_last = number == len(lives) - 1
        while samplers[0].epoch < 2 and (steps or is_last):
            batches = [cut(list(sampler), batch_size) for sampler in samplers]
            assert len({len(own) for own in batches}) == 1, "all ranks make the same number of steps"
            for step in zip(*batches, strict=True):
                if not (steps or is_last):
                    break
                seen[samplers[0].epoch].update(index for batch in step for index in batch)
                steps -= 1
                for sampler in samplers:
                    sampler.step_done()
                    assert sampler.state_dict() == samplers[0].state_dict()
        state = samplers[0].state_dict()
        epochs.append(samplers[0].epoch)
    most = max(world_size * batch_size for world_size, batch_size, _ in lives)
    for found in seen.values():
        if drop_last:
            assert max(found.values()) == 1
            assert sum(found.values()) > length - most, "less than one step is left out"
        else:
            assert set(found) == set(range(length))
            assert sum(found.values()) - length < max(world_size for world_size, _, _ in lives), "only to divide evenly"


def test_set_epoch_restarts_only_another_epoch():
    (sampler,) = group(10, 1, 4)
    sampler.step_done()
    sampler.set_epoch(0)
    assert len(sampler) == 6
    sampler.set_epoch(1)
    assert len(sampler) == 10


def test_the_state_of_another_order_is_refused():
    (sampler,) = group(10, 1, 4)
    with pytest.raises(ValueError, match="another order: length was 12 and is 10, seed was 1 and is 0"):
        sampler.load_state_dict(group(12, 1, 4, seed=1)[0].state_dict())
    with pytest.raises(ValueError, match="has 3 samples, one step of all ranks takes 4"):
        group(3, 1, 4, drop_last=True)
    with pytest.raises(ValueError, match="batch_size: is 0"):
        group(3, 1, 0)


def test_outside_a_job_epochs_advance_too():
    (sampler,) = group(10, 1, 4)
    run = Supervised(environ={})
    run.restore(sampler=sampler)
    run.step(0)
    assert sampler.state_dict()["seen"] == 4


def test_a_script_continues_after_the_last_sample_on_other_ranks(tmp_path):
    """Two ranks stop in the second epoch, and one rank finishes it."""
    entry = (str(Path(__file__).parents[1] / "sampled_script.py"),)
    with start_group(tmp_path, 2, entry=entry, stop_at=13, epochs=2) as first:
        assert first.wait() == [143, 143], first.outputs()
    with start_group(tmp_path, 1, generation=2, entry=entry, stop_at=None, epochs=2) as second:
        assert second.wait() == [0], second.outputs()
    lines = [line for rank in range(2) for line in read_lines(tmp_path / f"samples-{rank}.jsonl")]
    for epoch in (0, 1):
        found = Counter(index for line in lines if line["epoch"] == epoch for index in line["indices"])
        assert found == Counter(range(40)), "each sample once"
    assert {line["ranks"] for line in lines if line["epoch"] == 1} == {1, 2}


def test_a_loader_that_drops_all_samples_raises_an_error():
    sampler = ElasticSampler(range(100), batch_size=16, num_replicas=1, rank=0)
    loader = DataLoader(range(100), batch_size=16, sampler=sampler, drop_last=True)
    passes = (sampler.step_done() for _ in range(10) for _ in loader)
    with pytest.raises(RuntimeError, match="same drop_last"):
        list(passes)
