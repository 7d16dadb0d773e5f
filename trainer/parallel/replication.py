"""A copy of the model on every rank, by DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.config import TrainerConfig
from trainer.errors import StrategyError

_COMPRESSION = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}


def replicate(model: nn.Module, config: TrainerConfig, device: torch.device) -> nn.Module:
    """Wrap a model with final values that are equal on every rank. A single rank needs no wrapper."""
    return model if dist.get_world_size() == 1 else wrap(model, config, device)


def wrap(model: nn.Module, config: TrainerConfig, device: torch.device) -> DistributedDataParallel:
    """DDP's options, equal for any number of ranks. Raises StrategyError for bf16 gradients without NCCL."""
    options: dict[str, Any] = {} if config.broadcast_buffers else {"broadcast_buffers": False}  # torch 2.13 warns
    replica = DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
        find_unused_parameters=config.find_unused_parameters,
        init_sync=False,  # every rank has just written the same values
        **options,
    )
    if config.reduce_precision in _COMPRESSION:
        if config.reduce_precision == "bf16" and device.type == "cpu":
            raise StrategyError("reduce_precision: bf16 needs NCCL, and CPUs exchange by gloo; use fp16 or auto")
        replica.register_comm_hook(None, _COMPRESSION[config.reduce_precision])
    few_ranks = dist.get_world_size() <= 2  # two ranks sum equally in any order
    if not (few_ranks or config.find_unused_parameters or config.static_graph):
        _settle_buckets(replica, model)
    return replica


def _settle_buckets(replica: nn.Module, model: nn.Module) -> None:
    """Make DDP build its buckets now, by a backward pass that touches every parameter once, last to first.

    Otherwise DDP does so after its first backward pass, and from then on ranks add gradients in another order. Three or
    more ranks would then round differently after a restart than without one.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own_forward = vars(model).get("forward")  # set on the object, not on the class
    model.forward = lambda: torch.stack([parameter.sum() for parameter in parameters]).sum()
    replica().backward()
    del model.forward
    if own_forward is not None:
        model.forward = own_forward
    model.zero_grad(set_to_none=True)


def convert_batchnorm(model: nn.Module) -> nn.Module:
    """Convert BatchNorm to statistics over all ranks, on the meta device, before anything refers to modules."""
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return converted
