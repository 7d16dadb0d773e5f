"""Activation checkpointing: a block keeps its input and computes the rest again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.contract.config import Checkpointing

# What linear layers and convolutions run on. Attention is left out: dropout inside it draws random numbers, and to skip
# it in the second pass would shift those of every dropout behind it.
_PRODUCTS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.convolution.default,
]


def recompute(blocks: Sequence[nn.Module], checkpointing: Checkpointing | None) -> None:
    """Have every `every`-th block recomputed. Its `forward` is replaced, so that no parameter changes its name."""
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
