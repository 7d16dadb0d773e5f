"""A user's task, with everything that could make ranks differ: dropout, augmentation, padding, weights."""

import os
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Points:
    """Sequences of different lengths, padded to 8, with random noise each time."""

    def __init__(self, count, bad=()):
        self.count, self.bad, self.epoch = count, bad, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"cannot decode {index}")
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, 4, generator=generator) + 0.1 * torch.randn(8, 4)
        mask = torch.arange(8) <= index % 8
        return {"x": x, "y": x.sum(dim=1), "mask": mask, "index": index}

    def set_epoch(self, epoch):
        self.epoch = epoch


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 1)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.dropout(F.gelu(layer(x)))
        return self.layers[-1](x).squeeze(-1)


class OwnInit(Net):
    """A model that the meta device cannot build, as its constructor sets values. No snapshot has its buffer."""

    def __init__(self, width):
        super().__init__(width)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.2)
        self.register_buffer("gain", torch.full((1,), 0.5), persistent=False)

    def forward(self, x):
        return super().forward(x) * self.gain


def masked_loss(model, batch):
    errors = (model(batch["x"]) - batch["y"]).square() * batch["mask"]
    return errors.sum(), batch["mask"].sum()


def late_loss(seconds, model, batch):
    """Rank 1 is slow."""
    if dist.get_rank() == 1:
        time.sleep(seconds)
    return masked_loss(model, batch)


def poisoned_loss(model, batch):
    """Rank 1 has samples with a loss of NaN."""
    total, weight = masked_loss(model, batch)
    return total * (float("nan") if dist.get_rank() == 1 else 1.0), weight


def uncountable_loss(model, batch):
    total, weight = masked_loss(model, batch)
    assert float(total.detach()) >= 0  # there are no values on the meta device
    return total, weight


def task(cfg):
    parts = {
        "model": lambda: (OwnInit if cfg.get("own_init") else Net)(cfg["width"]),
        "data": Points(cfg.get("samples", 40), cfg.get("bad", ())),
        "loss": masked_loss,
    }
    if cfg.get("sgd"):
        parts["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        parts["schedule"] = lambda step: 1 / (1 + step / 10)
    if cfg.get("slow_rank_s"):
        parts["loss"] = partial(late_loss, cfg["slow_rank_s"])
    if cfg.get("poisoned"):
        parts["loss"] = poisoned_loss
    if cfg.get("uncountable"):
        parts["loss"] = uncountable_loss
    if cfg.get("evaluate"):
        parts["evaluate"] = Points(cfg["evaluate"])
    return {**parts, **cfg.get("replace", {})}


def no_dictionary(cfg):
    return 7


def own_values(cfg):
    """A model whose initial values differ between ranks: the rank seeds their generator."""

    def build():
        model = Net(8)
        draws = torch.Generator().manual_seed(int(os.environ["RANK"]))
        with torch.no_grad():
            model.layers[0].weight.copy_(torch.randn(8, 4, generator=draws))
        return model

    return {**task({"width": 8}), "model": build}
