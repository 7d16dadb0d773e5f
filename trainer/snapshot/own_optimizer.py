"""Create the state of an optimizer, so that a snapshot can be read into it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer.parallel.optim import ShardedAdamW


def create_state(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Make the optimizer create state for those of these parameters that have none. Their values are not kept.

    The optimizer makes a step with zero gradients and a zero rate for them alone, as in
    torch.distributed.checkpoint.state_dict. Its options stay as they are.
    """
    missing = {parameter for parameter in parameters if not optimizer.state.get(parameter)}
    if isinstance(optimizer, ShardedAdamW):
        optimizer.prepare(missing)
    elif missing:
        _step(optimizer, missing)


@torch.no_grad()
def _step(optimizer: torch.optim.Optimizer, missing: set[nn.Parameter]) -> None:
    groups = optimizer.param_groups
    options = [dict(group) for group in groups]
    gradients = {parameter: parameter.grad for group in groups for parameter in group["params"]}
    for parameter in gradients:
        parameter.grad = torch.zeros_like(parameter) if parameter in missing else None
    for group in groups:
        if "lr" in group:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    optimizer.step()
    for group, own in zip(groups, options, strict=True):
        group.clear()
        group.update(own)
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
