"""Create the state of a user's own optimizer, so that a snapshot can be read into it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer.errors import TaskError


@torch.no_grad()
def prepare_state(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Make the optimizer create missing state by a step that changes no parameter.

    The step has zero gradients and a zero rate, as in torch.distributed.checkpoint.state_dict, but for those parameters
    alone. Raises TaskError for an optimizer whose state is not made of tensors.
    """
    missing = {parameter for parameter in parameters if parameter.requires_grad and not optimizer.state.get(parameter)}
    if missing:
        _step_without_change(optimizer, missing)
    for state in optimizer.state.values():
        for name, value in state.items():
            if value is not None and not isinstance(value, Tensor):
                kind = f"{type(optimizer).__name__} keeps {name!r} as {type(value).__name__}"
                raise TaskError(f"optimizer: {kind}; a snapshot can only restore tensors")


def _step_without_change(optimizer: torch.optim.Optimizer, missing: set[nn.Parameter]) -> None:
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    gradients = {parameter: parameter.grad for group in groups for parameter in group["params"]}
    for parameter in gradients:
        parameter.grad = torch.zeros_like(parameter) if parameter in missing else None
    for group in groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
