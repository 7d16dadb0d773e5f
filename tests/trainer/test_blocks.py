"""The blocks of a model, and recomputing them."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.contract.config import parse_checkpointing, parse_wrap
from trainer.errors import StrategyError
from trainer.parallel.blocks import find_blocks
from trainer.parallel.recomputation import recompute


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x_BD: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x_BD + scale * self.dropout(self.inner(x_BD))


class Net(nn.Module):
    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, index_B: torch.Tensor) -> torch.Tensor:
        x_BD = self.embed(index_B)
        for layer in self.layers:
            x_BD = layer(x_BD, scale=0.5)
        return self.head(x_BD)


class Computed(TorchDispatchMode):
    """Counts the operations that are computed. Kept results are not computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[operation] += 1
        return operation(*args, **(kwargs or {}))


def names(model: nn.Module, wrap: str) -> list[str]:
    by_module = {module: name for name, module in model.named_modules()}
    return [by_module[block] for block in find_blocks(model, parse_wrap(wrap))]


def test_repeated_layers_are_blocks_and_their_parts_are_not():
    assert names(Net(), "auto") == [f"layers.{number}" for number in range(4)]


def test_the_blocks_of_a_plain_stack_are_its_layers_with_parameters():
    stack = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    assert names(stack, "auto") == ["0", "2", "4"]


def test_a_model_without_repetition_has_no_blocks():
    assert names(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "auto") == []


def test_blocks_can_be_chosen_by_class():
    assert names(Net(layers=2), "Layer,Embedding") == ["embed", "layers.0", "layers.1"]
    with pytest.raises(StrategyError, match="no module is a Decoder; there are Dropout, Embedding"):
        names(Net(), "Decoder")


def test_auto_uses_a_models_own_classes_unless_the_configuration_names_others():
    model = Net(layers=2)
    assert find_blocks(model, parse_wrap("auto"), (nn.Embedding, Net)) == [model.embed]
    assert find_blocks(model, parse_wrap("Layer"), (nn.Embedding,)) == list(model.layers)


def test_size_counts_parameters_outside_of_inner_blocks():
    assert names(Net(), ">=5K") == ["head"]  # a list of layers is never called, so it is not a block
    assert names(Net(layers=2), ">=500") == ["layers.0.inner", "layers.1.inner", "head"]


def recomputed(mode: str) -> Net:
    torch.manual_seed(0)
    model = Net(width=32)
    recompute(find_blocks(model, parse_wrap("auto")), parse_checkpointing(mode))
    return model


def gradients(mode: str) -> list[torch.Tensor]:
    model = recomputed(mode)
    model(torch.arange(10).repeat(100)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def kept_bytes(mode: str) -> int:
    model, kept = recomputed(mode), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.arange(10).repeat(100)).square().mean()
    return sum(kept)


def test_recomputed_blocks_have_the_same_gradients_with_dropout():
    expected = gradients("none")
    for mode in ("full", "every-2", "selective"):
        assert all(torch.equal(a, b) for a, b in zip(gradients(mode), expected, strict=True)), mode


def test_recomputing_more_blocks_keeps_fewer_activations():
    kept = [kept_bytes(mode) for mode in ("full", "every-2", "none")]
    assert kept[0] < kept[1] < kept[2]


def test_selective_recomputation_does_not_repeat_products():
    def products(mode: str) -> int:
        model = Net()
        recompute(find_blocks(model, parse_wrap("auto")), parse_checkpointing(mode))
        with Computed() as computed:
            model(torch.arange(10)).sum().backward()
        return computed.counts[torch.ops.aten.addmm.default]

    assert products("none") == products("selective") < products("full")
