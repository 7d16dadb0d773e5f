"""Process group, device and strategy: the one place that knows how the model is spread over ranks.

The order is fixed: meta device, shard, memory, values, optimizer, DDP wrapper. Both strategies average gradients over
ranks; the loop multiplies the loss by the world size to undo it.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.config import TrainerConfig
from trainer.contract.env import WorkerPlace
from trainer.errors import DeviceError
from trainer.model import SHAPES, Decoder, build_initial
from trainer.optim import ShardedAdamW, build_optimizer, local_of
from trainer.waits import Waits

# `auto`: AdamW in fp32 keeps 16 bytes per parameter, so that beyond this a replica takes 16 GB of each device.
AUTO_FSDP_PARAMETERS = 1_000_000_000
# Above the time that rank 0 takes to verify a large snapshot while the others wait; a hang is found sooner by its
# silence in progress.jsonl.
_GROUP_TIMEOUT = timedelta(minutes=20)


@dataclass(frozen=True)
class Trainee:
    """A model ready to train. `model` owns the parameters, `forward` is what a microbatch goes through."""

    model: Decoder
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    strategy: str
    device: torch.device
    precision: str

    def synchronise(self, is_last: bool) -> None:
        """Say whether this is the step's last microbatch: DDP reduces gradients only then.

        FSDP reduces after every microbatch: to wait would hold the gradients unsharded.
        """
        if isinstance(self.forward, DistributedDataParallel):
            self.forward.require_backward_grad_sync = is_last

    @property
    def exchanges_throughout(self) -> bool:
        """FSDP gathers parameters in every layer; DDP exchanges gradients alone, once the backward pass is done."""
        return self.strategy == "fsdp"

    def on_backward_done(self, action: Callable[[], None]) -> None:
        """Call `action` when this rank has computed all its gradients and has only to exchange them, under DDP.

        The embedding's gradient is the last: autograd accumulates a gradient as soon as it is there.
        """
        if isinstance(self.forward, DistributedDataParallel):
            self.model.embed.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's
                lambda _: action()
            )

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 arithmetic under DDP; FSDP casts by its own policy."""
        enabled = self.precision == "bf16" and self.strategy == "ddp"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)


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


def build_trainee(
    config: TrainerConfig,
    *,
    vocab_size: int,
    device: torch.device,
    write_values: Callable[[nn.Module, ShardedAdamW], None],
) -> Trainee:
    """Build model and optimizer; `write_values` fills every parameter, by `initialise` or from a snapshot."""
    with torch.device("meta"):
        model = Decoder(SHAPES[config.preset], vocab_size=vocab_size, dropout=config.dropout)
    strategy = choose_strategy(config.strategy, count_parameters(model), dist.get_world_size())
    if strategy == "fsdp":
        _shard(model, init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",)), config.precision)
    _allocate(model, device)
    optimizer = build_optimizer(model, config)
    write_values(model, optimizer)
    refuse_unwritten(model)
    return Trainee(model, _wrap(model, strategy, device), optimizer, strategy, device, config.precision)


def choose_strategy(wanted: str, parameters: int, world_size: int) -> str:
    """ "auto" means ddp, or fsdp when there are several ranks and more than AUTO_FSDP_PARAMETERS."""
    if wanted != "auto":
        return wanted
    return "fsdp" if world_size > 1 and parameters > AUTO_FSDP_PARAMETERS else "ddp"


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Write every parameter from its own seed, one full tensor at a time: equal at every world size and strategy."""
    for name, parameter in model.named_parameters():
        full = build_initial(name, parameter.shape, seed=seed, layers=len(model.blocks)).to(parameter.device)
        if isinstance(parameter, DTensor):
            # Every rank has the same full tensor, so no rank has to send it.
            full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(full)


@torch.no_grad()
def refuse_unwritten(model: nn.Module) -> None:
    """Raise RuntimeError for a parameter that still holds the NaN that `_allocate` left in it."""
    for name, parameter in model.named_parameters():
        if torch.isnan(local_of(parameter)).any():
            raise RuntimeError(f"parameter {name} holds NaN before the first step: it was never written")


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


def _shard(model: Decoder, mesh: DeviceMesh, precision: str) -> None:
    policy = MixedPrecisionPolicy()
    if precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def _allocate(model: nn.Module, device: torch.device) -> None:
    """Give memory to a model on the meta device, full of NaN so that a forgotten parameter shows."""
    model.to_empty(device=device)
    for parameter in model.parameters():
        local_of(parameter).fill_(float("nan"))


def _wrap(model: Decoder, strategy: str, device: torch.device) -> nn.Module:
    if strategy == "fsdp" or dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        gradient_as_bucket_view=True,
        init_sync=False,  # every rank has just written the same values
    )
