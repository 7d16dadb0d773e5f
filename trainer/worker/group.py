"""The process group and the device of this rank."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.contract.env import WorkerPlace
from trainer.errors import DeviceError
from trainer.worker.agreement import on_every_rank
from trainer.worker.lost_peer import is_end_of_group
from trainer.worker.torch_compat import release_process_groups
from trainer.worker.waits import Waits

# Longer than a rank takes to verify its part of a large snapshot while the others wait. A hang is found earlier, by the
# silence in progress.jsonl.
_GROUP_TIMEOUT = timedelta(minutes=20)
_LEAVES_WITHIN_S = 10.0  # for a broken group, whose other ranks may be gone


@contextmanager
def process_group(place: WorkerPlace, waits: Waits, *, is_last: bool = True) -> Iterator[torch.device]:
    """Join the group and take this rank's device. Leaves the group at the end, also after an exception.

    With `is_last` False this process may join another group after it has lost a peer.
    """
    device = _take_device(place)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    with waits.waiting():
        store = _open_store(place)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=_GROUP_TIMEOUT
        )
    is_broken = True
    try:
        if device.type != "cpu":
            refuse_shared_devices(on_every_rank(lambda: _identify(device), waits))
        yield device
        is_broken = False
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        is_last = is_last or not is_end_of_group(error)
        raise
    finally:
        # Dropping the last reference to a gloo group joins its threads. With the interpreter lock held this can
        # deadlock (seen in torch 2.13 with DDP): _leave or release_process_groups must drop the last reference.
        gc.collect()
        _leave(device, is_broken=is_broken)
        if not is_last and is_broken:
            release_process_groups()


def _leave(device: torch.device, *, is_broken: bool) -> None:
    """Destroy the group. After an error on a GPU this has a timeout, because NCCL may wait for dead ranks.

    The process ends next, and the thread with it.
    """
    if device.type == "cpu" or not is_broken:
        dist.destroy_process_group()
        return

    def destroy() -> None:
        torch.cuda.set_device(device)  # a new thread starts on device 0
        dist.destroy_process_group()

    thread = threading.Thread(target=destroy, name="leaving", daemon=True)
    thread.start()
    thread.join(_LEAVES_WITHIN_S)


def find_device_bytes(device: torch.device) -> int | None:
    """The total memory of a GPU. None for a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory


def _open_store(place: WorkerPlace) -> Store:
    if place.world_size == 1:
        return HashStore()
    # The store and its keys may outlive a generation: each generation has its own prefix.
    shared, _, _ = next(rendezvous("env://", timeout=_GROUP_TIMEOUT))
    return PrefixStore(f"trainer/a{place.attempt}-g{place.generation}", shared)


def _take_device(place: WorkerPlace) -> torch.device:
    if not torch.cuda.is_available():
        refuse_lost_devices(Path("/dev"), os.environ.get("CUDA_VISIBLE_DEVICES"), torch.version.cuda)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    # A worker that sees one device owns it, as with `srun --gpus-per-task=1`. See refuse_shared_devices.
    index = 0 if count == 1 else place.local_rank
    if index >= count:
        raise DeviceError(f"local rank {place.local_rank} has no device, {count} are visible: start fewer workers")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.cuda.synchronize(device)  # start CUDA now, so that its time counts as start-up
    return device


def refuse_shared_devices(identities: Sequence[str | None]) -> None:
    """Raise DeviceError if two ranks share a device. NCCL would fail later, with a less clear message.

    `identities` are by rank, None if the driver reports none.
    """
    for rank, identity in enumerate(identities):
        first = identities.index(identity)
        if identity is not None and first != rank:
            raise DeviceError(
                f"ranks {first} and {rank} share one device, GPU {identity}; start one worker for each device, and let "
                "each see either all devices of its node or only its own"
            )


def _identify(device: torch.device) -> str | None:
    identity = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # ROCm's has none
    return None if identity is None else str(identity)


def refuse_lost_devices(folder: Path, visible: str | None, cuda: str | None) -> None:
    """Raise DeviceError if torch finds no GPU on a node that has one, instead of training on the CPU.

    `folder` holds the driver's device files, `cuda` is the version that torch was built for, None for none.
    """
    devices = sorted(path.name for path in folder.glob("nvidia[0-9]*"))
    if devices and cuda is not None and visible not in ("", "-1"):
        raise DeviceError(
            f"this node has {', '.join(devices)}, but torch {torch.__version__} finds no GPU that it can use: check "
            "nvidia-smi, or set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"
        )
