"""A user's data: the order of samples, the accepted kinds of data, and worker processes."""

from collections import Counter, namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from trainer.contract.config import parse_config
from trainer.data.datasets import build_source
from trainer.data.feeder import Feeder, choose_workers, move
from trainer.data.source import Request
from trainer.errors import DataError, TaskError
from trainer.loop.microbatches import assign_microbatches

Pair = namedtuple("Pair", "x y")
CPU = torch.device("cpu")


def source_of(data, **options):
    options = {"task": "some:task", "global_batch": 8, "micro_batch": None, **options}
    return build_source(data, parse_config(options))


class Numbers:
    """Samples that are their own index."""

    def __init__(self, count):
        self.count, self.epochs = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def read(source, first, count=None):
    request = Request(step=0, microbatch=0, first=first, count=count or source.micro_batch)
    return source.read(request).batch.tolist()


def ledger(source, world_size, steps, global_batch=8):
    """All samples that the ranks consume, in the order of the stream."""
    taken = []
    for step in range(steps):
        for rank in range(world_size):
            for share in assign_microbatches(rank, world_size, global_batch // source.micro_batch):
                if share.weight:
                    first = step * global_batch + share.microbatch * source.micro_batch
                    taken.append((first, read(source, first)))
    return [index for _, batch in sorted(taken) for index in batch]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_ranks_together_read_one_stream(world_size):
    source = source_of(Numbers(20), micro_batch=2)
    consumed = ledger(source, world_size, steps=10)
    assert consumed == read(source, 0, 80)
    assert Counter(consumed) == Counter(dict.fromkeys(range(20), 4)), "each sample once per epoch"


def test_datasets_get_the_epoch_and_each_epoch_has_another_order():
    data = Numbers(20)
    source = source_of(data)
    assert read(source, 0, 20) != read(source, 20, 20)
    assert data.epochs == [0, 1]


def test_a_loaders_dataset_batch_size_and_collation_are_used_but_not_its_order():
    loader = DataLoader(Numbers(12), batch_size=4, shuffle=True, collate_fn=lambda items: torch.tensor(items) * 10)
    source = source_of(loader)
    assert source.micro_batch == 4
    assert sorted(read(source, 0, 12)) == [10 * index for index in range(12)]
    assert read(source, 0) == read(source_of(loader), 0)


def test_a_loader_that_does_not_shuffle_is_read_in_order():
    assert read(source_of(DataLoader(Numbers(6), batch_size=4)), 4) == [4, 5, 0, 1]


@pytest.mark.parametrize(
    "sampler",
    [SubsetRandomSampler(range(5, 10)), WeightedRandomSampler([0.0, 1.0, 1.0], 5)],
    ids=["subset", "weighted"],
)
def test_a_custom_sampler_runs_once_per_epoch(sampler):
    def epochs():
        source = source_of(DataLoader(Numbers(10), batch_size=2, sampler=sampler))
        return [read(source, 5 * epoch, 5) for epoch in range(3)]

    first = epochs()
    torch.manual_seed(99)  # the order depends only on (seed, epoch)
    assert epochs() == first
    assert first[0] != first[1] or first[1] != first[2]
    assert all(0 not in epoch for epoch in first)


def test_a_stream_of_batches_is_refused_with_advice():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    for data in (Stream(), DataLoader(Stream(), batch_size=2), (i for i in range(3))):
        with pytest.raises(TaskError, match=r"is iterable only.*\(step, microbatch\) -> batch"):
            source_of(data)


def test_a_loader_with_its_own_batch_sampler_is_refused():
    with pytest.raises(TaskError, match="has its own batch_sampler"):
        source_of(DataLoader(Numbers(4), batch_sampler=[[0, 1], [2, 3]]))


def test_a_function_of_step_and_microbatch_is_accepted_as_data():
    source = source_of(lambda step, microbatch: torch.tensor([step, microbatch]))
    assert source.read(Request(step=3, microbatch=1, first=28, count=4)).batch.tolist() == [3, 1]


def test_samples_that_do_not_collate_are_named():
    source = source_of([torch.ones(1), torch.ones(2)], micro_batch=2)
    failure = source.read(Request(0, 0, 0, 2)).failure
    assert failure is not None
    assert "samples" in failure
    assert "cannot be collated: RuntimeError" in failure
    assert "collate_fn" in failure


def test_random_augmentation_is_a_function_of_the_position():
    class Noise(Numbers):
        def __getitem__(self, index):
            return torch.rand(())

    source = source_of(Noise(10))
    assert read(source, 8) == read(source, 8)
    assert read(source, 8) != read(source, 16)


def feeder_of(source, workers):
    requests = (Request(step, 0, step * 8, 8) for step in range(100_000))
    return Feeder(source, requests, workers=workers, device=CPU, cores=4)


def test_worker_processes_deliver_in_order_and_name_unreadable_samples():
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 17:
                raise OSError("no such image")
            return index

    source = source_of(DataLoader(Broken(24), batch_size=8))
    feeder = feeder_of(source, workers=2)
    assert [feeder.next().batch.tolist()[0] for _ in range(2)] == [0, 8]
    with pytest.raises(DataError, match=r"sample 17 of the dataset \(position 17 of the run\).*OSError: no such image"):
        feeder.next()
    feeder.close()


def test_worker_processes_start_once_steps_wait_and_no_sample_is_lost():
    feeder = feeder_of(source_of(DataLoader(Numbers(800), batch_size=8)), workers=None)
    first = []
    for _ in range(8):
        first.append(feeder.next().batch.tolist()[0])
        feeder.waited_s = 0.5
        feeder.look(step_s=1.0)
    assert feeder.workers == 2
    assert first == list(range(0, 64, 8))
    feeder.close()


@pytest.mark.parametrize(
    ("waited_s", "steps_s", "cores", "workers"),
    [(0.01, 1.0, 8, 0), (0.2, 1.0, 8, 2), (0.5, 1.0, 8, 2), (0.75, 1.0, 8, 4), (0.99, 1.0, 4, 3), (1.0, 1.0, 1, 1)],
)
def test_there_are_as_many_processes_as_reading_needs_and_the_rank_has_cores(waited_s, steps_s, cores, workers):
    assert choose_workers(waited_s, steps_s, cores) == workers


def test_batches_keep_their_structure_when_moved_to_a_device():
    meta = torch.device("meta")
    batch = {"pair": Pair(torch.ones(2), [torch.ones(1), "text"]), "n": 3}
    moved = move(batch, meta)
    assert moved["pair"].x.is_meta
    assert moved["pair"].y[0].is_meta
    assert (moved["pair"].y[1], moved["n"]) == ("text", 3)


@pytest.mark.parametrize(
    ("is_pinned", "steps"), [(False, ["pinned", "sent"]), (True, ["sent"])], ids=["own", "loader's"]
)
def test_batches_for_a_gpu_are_sent_from_pinned_memory(monkeypatch, is_pinned, steps):
    """A copy from other memory blocks the host until the device is idle. Worker processes pin their batches."""
    gpu, taken = torch.device("cuda", 1), []

    def pin(tensor, *_):
        taken.append("pinned")
        return tensor

    def to(tensor, device, *, non_blocking):
        assert (device, non_blocking) == (gpu, True)
        taken.append("sent")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    source = source_of(DataLoader(Numbers(8), batch_size=2))
    feeder = Feeder(source, iter([Request(0, 0, 0, 2)]), workers=0, device=gpu, cores=4)
    feeder.workers = int(is_pinned)
    assert feeder.next().batch.tolist() == [0, 1]
    assert taken == steps


def test_a_dataset_that_grew_has_another_fingerprint():
    def fingerprint(count):
        return source_of(TensorDataset(torch.ones(count, 1))).fingerprint

    assert fingerprint(8) != fingerprint(9)
    assert fingerprint(8) == fingerprint(8)
