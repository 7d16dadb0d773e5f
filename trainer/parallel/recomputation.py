"""Activation checkpointing: a block keeps its input and recomputes the rest in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.contract.config import Checkpointing

# The operations of linear layers and convolutions. Attention is left out: its dropout draws random numbers. Without it,
# the second pass would draw other numbers for every later dropout.
_PRODUCTS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.convolution.default,
]


def recompute(blocks: Sequence[nn.Module], checkpointing: Checkpointing | None) -> None:
    """Recompute every `every`-th block. This replaces its `forward`, so that parameter names stay."""
    if checkpointing is None:
        return
    options: dict[str, Any] = {}
    if checkpointing.keeps_products:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _PRODUCTS)
    for block in blocks[:: checkpointing.every]:
        block.forward = _recomputed(block.forward, options)


def _recomputed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    return run
