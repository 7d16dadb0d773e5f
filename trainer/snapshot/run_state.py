"""The state of a run in a snapshot. See writing.py and state_reading.py.

Everything is global or keyed by parameter name: any number of ranks, with any strategy, can load it. Optimizer settings
are not part of it. They come from the configuration.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.errors import StrategyError, TaskError
from trainer.parallel.precision import LossScale
from trainer.snapshot.update_counts import UPDATES, pack_counts

KEY = "run"  # the name of the state in a snapshot, and the prefix of its tensors' names

Layout = frozenset[tuple[str, str]]  # the name of a parameter, and that of a tensor of its state


class RunState:
    """Model, optimizer moments, the counters of steps and samples, and the loss scale of fp16.

    It has the moments that the optimizer has made so far, and makes none.
    """

    def __init__(self, loss_scale: LossScale) -> None:
        self.loss_scale = loss_scale
        self.step = 0  # completed optimizer steps
        self.samples_seen = 0
        self.is_whole = True  # False while an optimizer step changes it, and if that fails
        self.changing = threading.Lock()  # held meanwhile, and by a thread that hands the state over
        self.parameters: dict[str, nn.Parameter] = {}  # of the attached model, by name
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Set the unwrapped model and its optimizer, once they are sharded and have memory.

        Raises TaskError for an optimizer whose state a snapshot would not have.
        """
        _refuse_hidden_state(optimizer)
        self._model, self._optimizer = model, optimizer
        self.parameters = dict(model.named_parameters())

    @property
    def model(self) -> nn.Module:
        """The attached model."""
        assert self._model is not None
        return self._model

    @property
    def optimizer(self) -> Optimizer:
        """The attached optimizer."""
        assert self._optimizer is not None
        return self._optimizer

    @property
    def layout(self) -> Layout:
        """The names of the optimizer's tensors on this rank. The first gradient of a parameter adds some."""
        states = {name: self.optimizer.state.get(value, {}) for name, value in self.parameters.items()}
        return frozenset((name, kind) for name, state in states.items() for kind in state)

    @property
    def num_moments(self) -> int:
        """How many tensors the optimizer has. This is the length of `layout`, but takes less time."""
        return sum(len(self.optimizer.state.get(value, ())) for value in self.parameters.values())

    def state_dict(self) -> dict[str, Any]:
        """The live tensors of model and optimizer.

        Raises StrategyError if the model's parameters are not those of the optimizer, and TaskError for an optimizer
        whose state is not made of tensors.
        """
        tensors = self.model.state_dict()  # first: this reshards what an evaluation left gathered
        self._refuse_changed(self.model)
        moments = {name: self._moments(value) for name, value in self.model.named_parameters()}
        return {
            "model": tensors,
            "optimizer": {name: own for name, own in moments.items() if own},
            **self._updates(),
            "step": self.step,
            "samples_seen": self.samples_seen,
            "loss_scale": self.loss_scale.state_dict(),
        }

    def contents(self) -> dict[str, Any]:
        """The state by its name in a snapshot."""
        return {KEY: self.state_dict()}

    def is_steady(self, name: str) -> bool:
        """Whether only an optimizer step changes this tensor. A forward pass changes buffers, too."""
        kind, _, rest = name.removeprefix(f"{KEY}.").partition(".")
        return kind in ("optimizer", UPDATES) or (kind == "model" and rest in self.parameters)

    def _refuse_changed(self, model: nn.Module) -> None:
        found = dict(model.named_parameters())
        names = [*found, *(name for name in self.parameters if name not in found)]
        changed = [name for name in names if found.get(name) is not self.parameters.get(name)]
        if changed:
            raise StrategyError(
                f"parameter {changed[0]} was added, replaced or removed since training began, and the optimizer "
                "does not know that; change only the values of parameters, or build the final model at once"
            )

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The optimizer's state of a parameter, without its step count."""
        state = self.optimizer.state.get(parameter, {})
        for name, value in state.items():
            if value is not None and not isinstance(value, Tensor):
                kind = f"{type(self.optimizer).__name__} keeps {name!r} as {type(value).__name__}"
                raise TaskError(f"optimizer: {kind}; a snapshot can only restore tensors")
        return {name: value for name, value in state.items() if name != "step" and value is not None}

    def _updates(self) -> dict[str, Any]:
        """How often the optimizer has updated each parameter of the model, if it counts that."""
        counts = {name: self.optimizer.state.get(value, {}).get("step") for name, value in self.parameters.items()}
        return pack_counts({name: count for name, count in counts.items() if count is not None})


def _refuse_hidden_state(optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer like ZeroRedundancyOptimizer, whose state is in an inner optimizer."""
    inner = getattr(optimizer, "optim", None)
    if isinstance(inner, Optimizer) and inner.state is not optimizer.state:
        raise TaskError(
            f"optimizer: {type(optimizer).__name__} keeps its state in another optimizer, which no snapshot has; "
            "use the inner optimizer, with strategy shard_grad_op or fsdp to shard its state"
        )
