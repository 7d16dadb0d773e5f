"""Explain an out-of-memory error: what the memory was used for, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from trainer.contract.advice import choose_strategy, describe_shortage
from trainer.contract.config import TrainerConfig
from trainer.contract.env import WorkerPlace
from trainer.contract.workload import BYTES_VOCABULARY, TOKENS_VOCABULARY, build_workload
from trainer.errors import OutOfMemory
from trainer.worker.group import find_device_bytes

_CPU_ALLOCATOR = "DefaultCPUAllocator"  # torch: c10/core/impl/alloc_cpu.cpp, which raises a plain RuntimeError
_SENTENCES_SHOWN = 2  # CUDA's first two: out of memory, and the size of the request


@contextmanager
def explained_shortage(config: TrainerConfig, place: WorkerPlace) -> Iterator[None]:
    """Raise OutOfMemory from an allocator's error. The message is that of the allocator, then our advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error) or config.task is not None:  # the shape of a user's own model is not known
            raise
        raise OutOfMemory(f"{_first_words(error)}; {_advice(config, place)}") from error


def _is_shortage(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _CPU_ALLOCATOR in str(error)


def _first_words(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return ". ".join(line.split(". ")[:_SENTENCES_SHOWN]).rstrip(".")


def _advice(config: TrainerConfig, place: WorkerPlace) -> str:
    load = build_workload(
        config,
        world_size=place.world_size,
        ranks_per_node=place.local_world_size,
        vocab=TOKENS_VOCABULARY if config.data.endswith(".bin") else BYTES_VOCABULARY,
    )
    if config.strategy == "auto":
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        load = replace(load, strategy=choose_strategy(load, find_device_bytes(device)))
    return describe_shortage(load)
