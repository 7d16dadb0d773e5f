"""What a snapshot holds of a run, and its way back through torch's distributed checkpoint (DCP); see writing.py.

Everything is keyed by parameter name or is global: a state saved by n ranks of one strategy loads into m ranks of the
other. Optimizer settings are not in it: they come from the configuration.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from trainer.agreement import on_every_rank
from trainer.errors import SnapshotError
from trainer.optim import ShardedAdamW
from trainer.own_optimizer import prepare_state
from trainer.precision import LossScale
from trainer.waits import Waits

KEY = "run"  # what the state is called in a snapshot: its tensors' names begin so


class RunState(Stateful):
    """Model, optimizer moments, the two counters that everything else is a function of, and the scale of fp16."""

    def __init__(self, loss_scale: LossScale) -> None:
        self.loss_scale = loss_scale
        self.step = 0  # completed optimizer steps
        self.samples_seen = 0
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._parameter_names: frozenset[str] = frozenset()

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Name the (unwrapped) model and its optimizer; once they are sharded and have memory."""
        self._model, self._optimizer = model, optimizer
        self._parameter_names = frozenset(name for name, _ in model.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """The very tensors of model and optimizer: DCP reads them to save and writes into them to load."""
        assert self._model is not None
        assert self._optimizer is not None
        self._prepare(self._optimizer, self._model)
        return {
            "model": self._model.state_dict(),
            "optimizer": {name: self._moments(value) for name, value in self._model.named_parameters()},
            "step": self.step,
            "samples_seen": self.samples_seen,
            "loss_scale": self.loss_scale.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert self._optimizer is not None
        self.step, self.samples_seen = state_dict["step"], state_dict["samples_seen"]
        self.loss_scale.load_state_dict(state_dict["loss_scale"])
        for moments in self._optimizer.state.values():
            if "step" in moments:
                moments["step"].fill_(self.step - self.loss_scale.skipped_steps)

    def _prepare(self, optimizer: Optimizer, model: nn.Module) -> None:
        if isinstance(optimizer, ShardedAdamW):
            optimizer.prepare(model.parameters())
        elif self.step == 0 or optimizer.state:  # after a step, one without any state keeps none
            prepare_state(optimizer, model.parameters())

    def is_steady(self, name: str) -> bool:
        """Whether only an optimizer step changes the tensor of this name in a snapshot; a buffer changes before."""
        kind, _, rest = name.removeprefix(f"{KEY}.").partition(".")
        return kind == "optimizer" or (kind == "model" and rest in self._parameter_names)

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Without the optimizer's own count, which is the step."""
        assert self._optimizer is not None
        moments = self._optimizer.state.get(parameter, {})
        return {name: value for name, value in moments.items() if name != "step" and value is not None}


def read_state(state: RunState, directory: Path, waits: Waits) -> None:
    """Load a verified snapshot into the attached model and optimizer. Collective. Raises SnapshotError.

    Each rank plans and reads by itself and then they agree that all could: DCP's own exchange of plans checks nothing
    more and takes several times as long.
    """
    on_every_rank(lambda: _read_own_part(state, directory), waits)


def _read_own_part(state: RunState, directory: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # DCP's word on `no_dist`
            load({KEY: state}, storage_reader=FileSystemReader(directory), no_dist=True)
    except CheckpointException as error:
        cause = str(error.failures[min(error.failures)][0]).strip() or "no message"
        raise SnapshotError(f"{directory} cannot be loaded: {cause.splitlines()[0]}") from error
