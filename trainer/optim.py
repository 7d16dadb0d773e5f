"""AdamW and its learning rate, which is a function of the global step alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.contract.config import TrainerConfig


def build_optimizer(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only. Build it after sharding: it keeps the parameters it is given."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate_at(step: int, config: TrainerConfig) -> float:
    """The rate of the update that follows `step` completed ones: linear warm-up, then a cosine to the final rate."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    span = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + span * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
