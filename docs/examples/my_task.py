"""A task: a small network learns to count bits. See own-task.yaml and docs/scripts.md."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset


class Bits(Dataset[tuple[Tensor, int]]):
    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __len__(self) -> int:
        return 2**self.bits

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        bits = torch.tensor([float(index >> place & 1) for place in range(self.bits)])
        return bits, bin(index).count("1")


class Net(nn.Module):
    def __init__(self, bits: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(bits, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, bits + 1)

    def forward(self, bits: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(bits))
        return logits


def task(cfg: Mapping[str, int]) -> dict[str, object]:
    return {
        "model": lambda: Net(cfg["bits"], cfg["width"]),
        "data": Bits(cfg["bits"]),
        "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    }
