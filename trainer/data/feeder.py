"""This rank's microbatches in order, read on demand or ahead of time by worker processes.

Only the request determines what is read, so reading ahead changes nothing but how long a step waits. By default a run
starts without worker processes and gets some if its steps wait: a fork costs less than a wrong guess.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, Dataset

from trainer.data.source import Read, Request, Source
from trainer.errors import DataError

_WARM_UP_STEPS = 2  # caches fill, kernels are chosen
_LOOK_STEPS = 4
_WORTH_SHARE = 0.05  # fraction of a step: below this, processes cost more than they save
_MOST_AUTO_WORKERS = 8


class Feeder:
    """`workers` None: measured in the first steps. `cores` is the number of cores that this rank may use."""

    def __init__(
        self, source: Source, requests: Iterator[Request], *, workers: int | None, device: torch.device, cores: int
    ) -> None:
        self.waited_s = 0.0  # waiting time since the caller last set it to 0
        self.workers = 0
        self._source, self._requests, self._device, self._cores = source, requests, device, cores
        self._reads: Iterator[Read] = map(source.read, requests)
        self._looks: list[tuple[float, float]] | None = [] if workers is None else None
        if workers:
            self._start(workers)

    def next(self) -> Read:
        """The next microbatch, on this rank's device. Raises DataError if it cannot be read."""
        started = time.perf_counter()
        read = next(self._reads)
        if read.failure is not None:
            raise DataError(read.failure)
        read = send(read, self._device, is_pinned=self.workers > 0)
        self.waited_s += time.perf_counter() - started
        return read

    def look(self, step_s: float) -> None:
        """Call after each step with its duration, to choose the number of workers."""
        if self._looks is None:
            return
        self._looks.append((self.waited_s, step_s))
        if len(self._looks) < _WARM_UP_STEPS + _LOOK_STEPS:
            return
        waited_s, steps_s = (sum(column) for column in zip(*self._looks[_WARM_UP_STEPS:], strict=True))
        self._looks = None
        if workers := choose_workers(waited_s, steps_s, self._cores):
            self._start(workers)

    def close(self) -> None:
        """Stop the worker processes."""
        self._reads = iter(())

    def _start(self, workers: int) -> None:
        self.workers = workers
        loader: DataLoader[Read] = DataLoader(
            _Reads(self._source),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # without a batch_size it gets what the dataset gave
            pin_memory=self._device.type == "cuda",
            multiprocessing_context="fork",  # a user's dataset and collation need not be picklable
        )
        self._reads = iter(loader)


def choose_workers(waited_s: float, steps_s: float, cores: int) -> int:
    """How many processes keep up with computing. 0 if the waiting time is too short for one."""
    if waited_s <= _WORTH_SHARE * steps_s:
        return 0
    computed_s = max(steps_s - waited_s, 1e-9)
    needed = math.ceil(waited_s / computed_s) + 1  # one spare, because reading times vary
    return max(1, min(needed, cores - 1, _MOST_AUTO_WORKERS))


def cores_of(local_world_size: int) -> int:
    """This rank's part of the node's cores."""
    return max(1, len(os.sched_getaffinity(0)) // local_world_size)


def send(read: Read, device: torch.device, *, is_pinned: bool = False) -> Read:
    """The microbatch on the device.

    The memory is pinned first: a copy from other memory blocks the host until the device has done its queued work.
    """
    if device.type == "cpu":
        return read
    if device.type == "cuda" and not is_pinned:
        read = read.pin_memory()
    return replace(read, batch=move(read.batch, device))


def move(batch: object, device: torch.device) -> object:
    """Move a batch to the device. Containers keep their types. Values without `to` stay."""
    if isinstance(batch, dict):
        return {name: move(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(move(value, device) for value in batch)
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device) for value in batch)
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    return batch.to(device) if hasattr(batch, "to") else batch


class _Reads(Dataset[Read]):
    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, request: Request) -> Read:
        return self._source.read(request)


def _as_it_is(read: Read) -> Read:
    return read
