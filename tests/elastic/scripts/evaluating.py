"""A task whose evaluation takes long enough to be interrupted."""

import time

import torch
from torch import nn


def task(config):
    return {
        "model": lambda: nn.Linear(4, 1),
        "data": [torch.full((4,), number / 64) for number in range(64)],
        "loss": loss,
        "evaluate": [torch.full((4,), number / 4) for number in range(4)],
    }


def loss(model, batch):
    if not torch.is_grad_enabled():
        time.sleep(0.5)
    return (model(batch) - 1).square().mean()
