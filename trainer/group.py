"""The process group and this rank's device: joined once, left whatever happens."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.contract.env import WorkerPlace
from trainer.errors import DeviceError
from trainer.waits import Waits

# Above the time that rank 0 takes to verify a large snapshot while the others wait; a hang is found sooner by its
# silence in progress.jsonl.
_GROUP_TIMEOUT = timedelta(minutes=20)


@contextmanager
def process_group(place: WorkerPlace, waits: Waits) -> Iterator[torch.device]:
    """Join the group and take this rank's device; leave it at the end, whatever happens."""
    device = _take_device(place)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    with waits.waiting():
        store = _open_store(place)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=_GROUP_TIMEOUT
        )
    try:
        yield device
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # Whoever drops a gloo group last joins its threads, and with the interpreter lock held that can deadlock (seen
        # in torch 2.13 with DDP): the last reference must be the one that destroy_process_group drops.
        gc.collect()
        dist.destroy_process_group()


def find_device_bytes(device: torch.device) -> int | None:
    """The device's whole memory; None for the host's CPU, which others use as well."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory


def _open_store(place: WorkerPlace) -> Store:
    if place.world_size == 1:
        return HashStore()
    # The store may outlive a generation, and its keys with it: each generation gets its own.
    shared, _, _ = next(rendezvous("env://", timeout=_GROUP_TIMEOUT))
    return PrefixStore(f"trainer/a{place.attempt}-g{place.generation}", shared)


def _take_device(place: WorkerPlace) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = 0 if count == 1 and place.local_world_size == 1 else place.local_rank
    if index >= count:
        raise DeviceError(f"local rank {place.local_rank} has no device, {count} are visible: start fewer workers")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
