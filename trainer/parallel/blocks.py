"""The blocks of a model: the modules that are sharded, recomputed and compiled as units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from trainer.contract.config import Wrap
from trainer.errors import StrategyError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)  # they have no forward


def find_blocks(model: nn.Module, wrap: Wrap, classes: tuple[type[nn.Module], ...] | None = None) -> list[nn.Module]:
    """Blocks in the order of `modules()`, without the model. `classes` is what `auto` means for this model.

    Raises StrategyError for a class that is not there.
    """
    if wrap.class_names is not None:
        return _of_classes(model, wrap.class_names)
    if wrap.min_parameters is not None:
        large = _of_size(model, wrap.min_parameters)
        return [module for module in model.modules() if module in large and module is not model]
    if classes is not None:
        return [module for module in model.modules() if isinstance(module, classes) and module is not model]
    return _repeated(model)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _of_classes(model: nn.Module, names: tuple[str, ...]) -> list[nn.Module]:
    present = {type(module).__name__ for module in model.modules() if module is not model}
    missing = [name for name in names if name not in present]
    if missing:
        raise StrategyError(f"wrap: no module is a {missing[0]}; there are {', '.join(sorted(present))}")
    return [module for module in model.modules() if module is not model and type(module).__name__ in names]


def _of_size(model: nn.Module, least: int) -> set[nn.Module]:
    """From the leaves up, a module is a block if the parameters that no block below it holds are large enough."""
    taken: set[nn.Module] = set()

    def leftover(module: nn.Module) -> int:
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        size = own + sum(leftover(child) for child in module.children())
        if size < least or isinstance(module, _NEVER_CALLED):
            return size
        taken.add(module)
        return 0

    leftover(model)
    return taken


def _repeated(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that share a list with others of their class. Composite ones come first."""
    repeated = list(_siblings_of_a_kind(model))
    composite = [module for module in repeated if any(True for _ in module.children())]
    return composite or repeated


def _siblings_of_a_kind(module: nn.Module) -> Iterator[nn.Module]:
    children = list(module.children())
    counts = Counter(type(child) for child in children) if isinstance(module, _CONTAINERS) else Counter()
    for child in children:
        if counts[type(child)] > 1 and not isinstance(child, _CONTAINERS) and count_parameters(child):
            yield child
        else:
            yield from _siblings_of_a_kind(child)
