"""AdamW, gradient clipping, and the learning rate as a function of the global step.

All arithmetic is on each rank's own shards. torch plans every operation on a sharded tensor, which for a small model
takes longer than the arithmetic, most of all in the first step after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from trainer.contract.config import TrainerConfig
from trainer.worker.torch_compat import multiply_each, norm_of_each

_NO_ZERO_DIVISION = 1e-6  # as torch.nn.utils.clip_grad_norm_
_IMPLS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False, "fused": False},
}


class ShardedAdamW(torch.optim.AdamW):
    """AdamW on local shards: it is elementwise."""

    def _init_group(  # torch's hook for the tensors of a step
        self,
        group: dict[str, Any],
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
    ) -> bool:
        self.prepare(group["params"])
        lists = params_with_grad, grads, exp_avgs, exp_avg_sqs
        has_complex = super()._init_group(  # type: ignore[no-untyped-call]
            group, *lists, max_exp_avg_sqs, state_steps
        )
        for tensors in lists:
            tensors[:] = [local_of(tensor) for tensor in tensors]
        return bool(has_complex)

    def prepare(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give zero moments to parameters that have none, as torch does at the first step.

        Only a fused kernel counts steps on the device. The others read the count of each parameter, twice a step, and
        would wait for the device each time.
        """
        is_fused = self.defaults["fused"]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device if is_fused else "cpu"),
                    "exp_avg": _zeros_like(parameter),
                    "exp_avg_sq": _zeros_like(parameter),
                }


def local_of(tensor: Tensor) -> Tensor:
    """This rank's shard of a sharded tensor, without a copy. Other tensors are returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _zeros_like(parameter: Tensor) -> Tensor:
    zeros = torch.zeros_like(local_of(parameter.detach()))
    if not isinstance(parameter, DTensor):
        return zeros
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(zeros, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def build_optimizer(model: nn.Module, config: TrainerConfig) -> ShardedAdamW:
    """AdamW with weight decay on matrices only. Build it after sharding: it holds the parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return ShardedAdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), **_IMPLS[config.optimizer_impl])


# Gradients that one kernel can process together, and the ranks that hold their shards.
_Kind = tuple[torch.device, torch.dtype, DeviceMesh | None, tuple[Placement, ...]]
Gradients = dict[_Kind, list[Tensor]]


@torch.no_grad()
def gather_gradients(parameters: Iterable[nn.Parameter]) -> Gradients:
    """This rank's shards by kind, in the same order on every rank."""
    kinds: Gradients = {}
    for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
        spread = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else (None, ())
        kinds.setdefault((gradient.device, gradient.dtype, *spread), []).append(local_of(gradient))
    return kinds


@torch.no_grad()
def measure_norm(gradients: Gradients) -> Tensor:
    """The global norm, in fp32 or better, on the device of the first kind. inf or NaN if a gradient is.

    Collective for sharded parameters: each shard counts once, however many ranks hold a copy of it.
    """
    return _norm_squared(gradients).sqrt()


@torch.no_grad()
def clip_gradients(gradients: Gradients, norm: Tensor, limit: float, *, loss_scale: float = 1.0) -> None:
    """Undo the loss scale, then clip the global norm to `limit` (0: no clipping).

    `norm` is what they measure now. The host need not know it.
    """
    if not limit and loss_scale == 1.0:
        return
    factor = torch.clamp(limit / (norm / loss_scale + _NO_ZERO_DIVISION), max=1.0) if limit else torch.ones_like(norm)
    for (device, *_), shards in gradients.items():
        multiply_each(shards, (factor / loss_scale).to(device))


def _norm_squared(gradients: Gradients) -> Tensor:
    """The squared global norm, in fp32 or better, on the device of the first kind."""
    sums: list[Tensor] = []
    for (_, dtype, mesh, placements), shards in gradients.items():
        norms = norm_of_each(shards, torch.promote_types(dtype, torch.float32))
        squares = torch.stack(norms).square().sum()
        for dimension, placement in enumerate(placements):
            if isinstance(placement, Shard) and mesh is not None:
                dist.all_reduce(squares, group=mesh.get_group(dimension))
        sums.append(squares)
    return torch.stack([squares.to(sums[0].device, torch.float64) for squares in sums]).sum() if sums[1:] else sums[0]


def learning_rate_at(step: int, config: TrainerConfig) -> float:
    """The rate of the update after `step` completed ones: linear warm-up, then cosine decay to the final rate."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    span = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + span * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
