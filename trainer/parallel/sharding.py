"""Shard parameters, gradients and optimizer state over ranks with FSDP2.

`fully_shard` averages gradients over all ranks of the mesh, those that hold copies included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from trainer.contract.config import TrainerConfig
from trainer.parallel.precision import PRECISIONS, REDUCE_DTYPES
from trainer.parallel.strategy import Layout
from trainer.worker.torch_compat import note_mesh


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], layout: Layout, config: TrainerConfig, device: torch.device
) -> None:
    """Shard each block, then the rest of the model, in place. Parameters become DTensors."""
    mesh, policy = _build_mesh(layout, device), _cast_policy(config)
    # The loss receives outputs in full precision, as autocast gives them under ddp.
    outer_policy = replace(policy, output_dtype=None if policy.param_dtype is None else torch.float32)
    offload = CPUOffloadPolicy(pin_memory=device.type != "cpu") if config.cpu_offload else OffloadPolicy()
    reshard = None if layout.frees_after_forward else False  # None: all modules but the outermost
    for module in (*reversed(blocks), model):  # inner modules first: an outer one takes the rest
        casts = outer_policy if module is model else policy
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=casts, offload_policy=offload)
        if device.type == "cpu" and isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo of torch 2.8 sums instead of averaging (seen)
    if config.prefetch_blocks:
        _prefetch(blocks, config.prefetch_blocks)


def _build_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """The names of the mesh have this rank, which may be another one after the group has changed.

    Two meshes are equal if their shapes, their ranks and their names are. So DTensor's caches would give this process
    the mesh of an earlier group of the same size, in which it had another place.
    """
    rank = dist.get_rank()
    if layout.replicas == 1:
        return note_mesh(init_device_mesh(device.type, (layout.shards,), mesh_dim_names=(f"shard-{rank}",)))
    sizes, names = (layout.replicas, layout.shards), (f"replica-{rank}", f"shard-{rank}")
    return note_mesh(init_device_mesh(device.type, sizes, mesh_dim_names=names))


def _cast_policy(config: TrainerConfig) -> MixedPrecisionPolicy:
    arithmetic, reduce = PRECISIONS[config.precision].arithmetic, REDUCE_DTYPES.get(config.reduce_precision)
    if arithmetic is not None and reduce is None:
        reduce = torch.float32
    return MixedPrecisionPolicy(param_dtype=arithmetic, reduce_dtype=reduce)


def _prefetch(blocks: Sequence[nn.Module], count: int) -> None:
    """Prefetch `count` blocks ahead, in the order of the model."""
    modules: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    for place, module in enumerate(modules):
        module.set_modules_to_forward_prefetch(modules[place + 1 : place + 1 + count])
        module.set_modules_to_backward_prefetch(modules[max(0, place - count) : place][::-1])
