"""Memory and initial values for a model on the meta device, equal at every world size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.model.initial import Ties, put
from trainer.parallel.optim import local_of


@torch.no_grad()
def allocate(model: nn.Module, device: torch.device, *, home: torch.device) -> None:
    """Give memory to a model on the meta device. Parameters on `home` are NaN, so that a missed one is found.

    Buffers belong where the model computes, on `device`.
    """
    ties = Ties(model)
    model.to_empty(device=home)
    ties.restore()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    for parameter in model.parameters():
        local_of(parameter).fill_(float("nan"))


@torch.no_grad()
def initialize(model: nn.Module, value_of: Callable[[str, torch.Size], Tensor]) -> None:
    """Write every parameter, one full tensor at a time, from its name and shape."""
    for name, parameter in model.named_parameters():
        put(parameter, value_of(name, parameter.shape))


@torch.no_grad()
def refuse_unwritten(model: nn.Module) -> None:
    """Raise RuntimeError if a parameter still has the NaN of `allocate`."""
    for name, parameter in model.named_parameters():
        if torch.isnan(local_of(parameter)).any():
            raise RuntimeError(f"parameter {name} holds NaN before the first step: it was never written")
