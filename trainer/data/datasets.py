"""A user's own data as a source of microbatches.

`build_source` takes a map-style dataset (`__len__` and `__getitem__`), a DataLoader, or a function
(step, microbatch) -> batch. Of a DataLoader it uses the dataset, batch size, sampler and collation; the order becomes a
function of (seed, epoch). Iterable-only data are refused: the position of an iterator can be neither read nor set.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from trainer.contract.config import TrainerConfig
from trainer.data.sample_order import draw_windows
from trainer.data.seeds import seed_all, seed_of
from trainer.data.source import BadSample, Read, Request, Source
from trainer.errors import DataError, TaskError

Collate = Callable[[list[object]], object]


class Dataset(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object: ...


class Order(Protocol):
    def draw(self, first: int, count: int) -> list[tuple[int, int]]:
        """(epoch, index in the dataset) at stream positions first .. first + count - 1."""
        ...


@dataclass(frozen=True)
class Shuffled:
    """Each sample once per epoch, in an order that (seed, epoch) selects."""

    length: int
    seed: int

    def draw(self, first: int, count: int) -> list[tuple[int, int]]:
        indices = draw_windows(first=first, count=count, num_windows=self.length, seed=self.seed)
        return [((first + place) // self.length, int(index)) for place, index in enumerate(indices)]


@dataclass(frozen=True)
class Sequential:
    length: int

    def draw(self, first: int, count: int) -> list[tuple[int, int]]:
        return [divmod(position, self.length) for position in range(first, first + count)]


class Sampled:
    """The order of the user's own sampler. It runs once per epoch, with all generators seeded by the epoch."""

    def __init__(self, sampler: Iterable[int], seed: int) -> None:
        self._sampler, self._seed = sampler, seed
        self._epoch, self._indices = 0, self._run(0)

    def draw(self, first: int, count: int) -> list[tuple[int, int]]:
        drawn: list[tuple[int, int]] = []
        for position in range(first, first + count):
            epoch, place = divmod(position, len(self._indices))
            if epoch != self._epoch:
                self._indices, self._epoch = self._run(epoch), epoch
            drawn.append((epoch, int(self._indices[place])))
        return drawn

    def _run(self, epoch: int) -> NDArray[np.int64]:
        seed = seed_of("sampler", self._seed, epoch)
        seed_all(seed)
        generator = getattr(self._sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        set_epoch(self._sampler, epoch)
        indices = np.fromiter(self._sampler, dtype=np.int64)
        if not len(indices) or (epoch and len(indices) != len(self._indices)):
            found = f"{len(indices)} samples in epoch {epoch}"
            raise TaskError(
                f"data: the loader's {type(self._sampler).__name__} gives {found}: every epoch needs the same number"
            )
        return indices


class Samples:
    """A map-style dataset in a given order."""

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        *,
        collate: Collate,
        micro_batch: int,
        seed: int,
        most_skipped: int,
        workers: int | None = None,
    ) -> None:
        self.micro_batch, self.workers = micro_batch, workers
        self._dataset, self._order, self._collate = dataset, order, collate
        self._seed, self._most_skipped = seed, most_skipped
        self._epoch: int | None = None

    @property
    def fingerprint(self) -> dict[str, object]:
        own = getattr(self._dataset, "fingerprint", None)
        described: dict[str, object] = {"dataset": type(self._dataset).__name__, "samples": len(self._dataset)}
        return described if own is None else {**described, "fingerprint": str(own)}

    def read(self, request: Request) -> Read:
        drawn = self._order.draw(request.first, request.count)
        seed_all(seed_of("samples", self._seed, request.first))  # augmentations use the global generators
        samples: list[object] = []
        skipped: list[BadSample] = []
        for place, (epoch, index) in enumerate(drawn):
            self._enter(epoch)
            sample = self._get(index, request.first + place, skipped)
            if self._is_too_much(skipped):
                return Read(None, failure=f"{skipped[-1]}{_advise(self._most_skipped)}")
            samples.append(sample)
        try:
            return Read(self._collate(samples), tuple(skipped))
        except Exception as error:  # noqa: BLE001  # the user's collate_fn
            indices = ", ".join(str(index) for _, index in drawn)
            advice = "give a DataLoader with a collate_fn as data"
            return Read(None, failure=f"samples {indices} cannot be collated: {describe(error)}; {advice}")

    def _get(self, index: int, position: int, skipped: list[BadSample]) -> object:
        """The sample, or the next readable one in the dataset. None after too many unreadable ones."""
        while not self._is_too_much(skipped):
            try:
                return self._dataset[index]
            except Exception as error:  # noqa: BLE001  # the user's dataset
                skipped.append(BadSample(index, position, describe(error)))
                index = (index + 1) % len(self._dataset)
        return None

    def _is_too_much(self, skipped: list[BadSample]) -> bool:
        return len({bad.index for bad in skipped}) > self._most_skipped

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            set_epoch(self._dataset, epoch)


class Called:
    """A function (step, microbatch) -> batch."""

    workers: int | None = None

    def __init__(self, function: Callable[[int, int], object], *, micro_batch: int, seed: int) -> None:
        self.micro_batch, self._function, self._seed = micro_batch, function, seed

    @property
    def fingerprint(self) -> dict[str, object]:
        return {"function": getattr(self._function, "__qualname__", type(self._function).__name__)}

    def read(self, request: Request) -> Read:
        seed_all(seed_of("samples", self._seed, request.first))
        try:
            return Read(self._function(request.step, request.microbatch))
        except Exception as error:  # noqa: BLE001  # the user's function
            place = f"of step {request.step}, microbatch {request.microbatch}"
            return Read(None, failure=f"the batch {place} cannot be read: {describe(error)}")


def build_source(data: object, config: TrainerConfig) -> Source:
    """Raises TaskError for data that cannot be read by position, and DataError for an empty dataset."""
    if isinstance(data, DataLoader):
        return _of_loader(data, config)
    if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__")):
        raise TaskError(
            f"data: {type(data).__name__} is iterable only, so a restart could not find its position; give a "
            "dataset with __len__ and __getitem__, or a function (step, microbatch) -> batch"
        )
    micro_batch, seed = config.sequences_per_microbatch, config.seed
    if hasattr(data, "__getitem__"):
        length = _length(data)
        return Samples(
            data,  # type: ignore[arg-type]  # it has __getitem__ and a length
            Shuffled(length, seed),
            collate=default_collate,
            micro_batch=micro_batch,
            seed=seed,
            most_skipped=config.skip_bad_samples,
        )
    if callable(data):
        return Called(data, micro_batch=micro_batch, seed=seed)
    raise TaskError(
        f"data: is a {type(data).__name__}, must be a dataset with __len__ and __getitem__, a DataLoader, "
        "or a function (step, microbatch) -> batch"
    )


def build_evaluation(data: object, config: TrainerConfig) -> tuple[Source, int]:
    """A source that reads a dataset or a DataLoader's dataset in order, and its length. Raises TaskError, DataError."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if not hasattr(dataset, "__getitem__"):
        raise TaskError(f"evaluate: is a {type(data).__name__}, must be a dataset with __len__ and __getitem__")
    length = _length(dataset)
    source = Samples(
        dataset,  # type: ignore[arg-type]  # it has __getitem__ and a length
        Sequential(length),
        collate=data.collate_fn if isinstance(data, DataLoader) else default_collate,
        micro_batch=(data.batch_size if isinstance(data, DataLoader) else None) or config.sequences_per_microbatch,
        seed=config.seed,
        most_skipped=0,
    )
    return source, length


def _of_loader(loader: DataLoader[object], config: TrainerConfig) -> Source:
    size = loader.batch_size
    if isinstance(loader.dataset, IterableDataset):
        return build_source(loader.dataset, config)  # raises TaskError
    if size is None or type(loader.batch_sampler) is not BatchSampler:
        raise TaskError("data: the loader has its own batch_sampler; give it a batch_size instead")
    if config.micro_batch not in (None, size) or config.global_batch % size:
        raise TaskError(
            f"data: the loader's batch_size {size} is the microbatch: it must divide global_batch = "
            f"{config.global_batch}, and equal micro_batch if that is set"
        )
    return Samples(
        loader.dataset,  # type: ignore[arg-type]  # its length is asked for at once
        _order_of(loader, _length(loader.dataset), config.seed),
        collate=loader.collate_fn,
        micro_batch=size,
        seed=config.seed,
        most_skipped=config.skip_bad_samples,
        workers=loader.num_workers or None,
    )


def _order_of(loader: DataLoader[object], length: int, seed: int) -> Order:
    sampler = loader.sampler
    if hasattr(sampler, "num_replicas"):
        raise TaskError(
            f"data: the loader's {type(sampler).__name__} shards for a fixed number of ranks, which may change; "
            "leave it out (with shuffle=True if it shuffled): the trainer divides one order among the ranks"
        )
    if isinstance(sampler, SequentialSampler):
        return Sequential(length)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length:
        return Shuffled(length, seed)
    return Sampled(sampler, seed)


def _length(dataset: object) -> int:
    """Raise TaskError for a dataset without a length, DataError for an empty one."""
    if not isinstance(dataset, Sized):
        raise TaskError(
            f"data: {type(dataset).__name__} has no __len__, so epochs are undefined; add one, or give a "
            "function (step, microbatch) -> batch"
        )
    if len(dataset) == 0:
        raise DataError(f"data: {type(dataset).__name__} is empty; give at least one sample")
    return len(dataset)


def set_epoch(subject: object, epoch: int) -> None:
    """Call `set_epoch` of a dataset or sampler that has it."""
    setter = getattr(subject, "set_epoch", None)
    if callable(setter):
        setter(epoch)


def describe(error: Exception) -> str:
    """One line: the error, and the innermost line of code that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]} ({frame.filename}:{frame.lineno})"


def _advise(most_skipped: int) -> str:
    if most_skipped:
        return f"; this exceeds skip_bad_samples = {most_skipped}"
    return "; fix it, or allow for some with skip_bad_samples"
