"""Two ranks save objects whose parts differ, and load them into others. The argument is a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.script import script_state

FOLDER = Path(sys.argv[1])


class Model(nn.Module):
    """An expert has the same shape on each rank, and other values."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.shared, self.expert = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((2, 2), value))


class Counter:
    """State that is no tensor: as many draws as the rank has made."""

    def __init__(self, draws: int) -> None:
        self.draws = [draws, {"last": draws}]

    def state_dict(self) -> dict[str, object]:
        return {"draws": self.draws, "seed": 7}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert state["seed"] == 7
        self.draws = state["draws"]  # type: ignore[assignment]


def build(value: float) -> dict[str, object]:
    model = Model(value)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "counter": Counter(int(value))}


def values(objects: dict[str, object]) -> list[object]:
    model, optimizer, counter = objects.values()
    assert isinstance(model, Model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(counter, Counter)
    states = [tensor.tolist() for own in optimizer.state.values() for tensor in own.values()]
    weights = [each.tolist() for each in model.parameters() if isinstance(each, Tensor)]
    return [weights, states, [group["lr"] for group in optimizer.param_groups], counter.draws]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    before, after = build(1.0 + rank), build(0.0)
    model, optimizer = before["model"], before["optimizer"]
    assert isinstance(model, Model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank)
    for _ in range(1 + rank):
        model.expert.grad = torch.full((2, 2), 1.0 + rank)
        optimizer.step()
    script_state.save(before, FOLDER)
    script_state.load(after, FOLDER, rank)
    assert values(after) == values(before), (values(after), values(before))
    script_state.load(after, FOLDER, 5)
    print(values(after), flush=True)
    dist.destroy_process_group()


main()
