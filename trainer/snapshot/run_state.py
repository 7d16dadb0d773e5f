"""The state of a run in a snapshot, and how torch's distributed checkpoint (DCP) restores it. See writing.py.

Everything is global or keyed by parameter name: any number of ranks, with any strategy, can load it. Optimizer settings
are not part of it. They come from the configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from trainer.contract.manifest import SnapshotName
from trainer.errors import SnapshotError, StrategyError
from trainer.parallel.optim import ShardedAdamW
from trainer.parallel.precision import LossScale
from trainer.snapshot.lineage import Restore
from trainer.snapshot.memory_reading import MemoryReader, open_memory
from trainer.snapshot.own_optimizer import prepare_state
from trainer.snapshot.reading import ContiguousReader
from trainer.snapshot.streams import open_reader, without_group_warning
from trainer.worker.agreement import on_every_rank
from trainer.worker.torch_compat import read_later_metadata
from trainer.worker.waits import Waits

_OTHER_OPTIMIZER = (
    "; it was made by another optimizer: export it and import it with --weights, to continue from its weights alone"
)
KEY = "run"  # the name of the state in a snapshot, and the prefix of its tensors' names


class RunState(Stateful):
    """Model, optimizer moments, the counters of steps and samples, and the loss scale of fp16."""

    def __init__(self, loss_scale: LossScale) -> None:
        self.loss_scale = loss_scale
        self.step = 0  # completed optimizer steps
        self.samples_seen = 0
        self.is_whole = True  # False while an optimizer step changes it
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._parameters: dict[str, nn.Parameter] = {}

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Set the unwrapped model and its optimizer, once they are sharded and have memory."""
        self._model, self._optimizer = model, optimizer
        self._parameters = dict(model.named_parameters())

    @property
    def model(self) -> nn.Module:
        """The attached model."""
        assert self._model is not None
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """The live tensors of model and optimizer. DCP reads them to save and writes into them to load.

        Raises StrategyError if the model's parameters are not those of the optimizer.
        """
        assert self._optimizer is not None
        tensors = self.model.state_dict()  # first: this reshards what an evaluation left gathered
        self._refuse_changed(self.model)
        self._prepare(self._optimizer, self.model)
        return {
            "model": tensors,
            "optimizer": {name: self._moments(value) for name, value in self.model.named_parameters()},
            "step": self.step,
            "samples_seen": self.samples_seen,
            "loss_scale": self.loss_scale.state_dict(),
        }

    def contents(self) -> dict[str, Any]:
        """The state by its name in a snapshot."""
        return {KEY: self.state_dict()}

    def without_optimizer(self) -> Stateful:
        """The same state without the optimizer's tensors, which stay unchanged."""
        return _WithoutOptimizer(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert self._optimizer is not None
        self.step, self.samples_seen = state_dict["step"], state_dict["samples_seen"]
        self.loss_scale.load_state_dict(state_dict["loss_scale"])
        for moments in self._optimizer.state.values():
            if "step" in moments:
                moments["step"].fill_(self.step - self.loss_scale.skipped_steps)

    def _refuse_changed(self, model: nn.Module) -> None:
        found = dict(model.named_parameters())
        names = [*found, *(name for name in self._parameters if name not in found)]
        changed = [name for name in names if found.get(name) is not self._parameters.get(name)]
        if changed:
            raise StrategyError(
                f"parameter {changed[0]} was added, replaced or removed since training began, and the optimizer "
                "does not know that; change only the values of parameters, or build the final model at once"
            )

    def _prepare(self, optimizer: Optimizer, model: nn.Module) -> None:
        if isinstance(optimizer, ShardedAdamW):
            optimizer.prepare(model.parameters())
        elif self.step == 0 or optimizer.state:  # an optimizer without state after a step is stateless
            prepare_state(optimizer, model.parameters())

    def is_steady(self, name: str) -> bool:
        """Whether only an optimizer step changes this tensor. A forward pass changes buffers, too."""
        kind, _, rest = name.removeprefix(f"{KEY}.").partition(".")
        return kind == "optimizer" or (kind == "model" and rest in self._parameters)

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The optimizer's state of a parameter, without its step count."""
        assert self._optimizer is not None
        moments = self._optimizer.state.get(parameter, {})
        return {name: value for name, value in moments.items() if name != "step" and value is not None}


class _WithoutOptimizer(Stateful):
    def __init__(self, state: RunState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self._state.state_dict().items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state.load_state_dict(state_dict)


def read_state(state: RunState, restore: Restore, waits: Waits) -> None:
    """Load a verified snapshot into the attached model and optimizer. Collective. Raises SnapshotError.

    Each rank plans and reads on its own, and then all agree that all succeeded. DCP's exchange of plans checks nothing
    more and takes several times as long.
    """
    wanted = state if restore.manifest.has_optimizer else state.without_optimizer()
    on_every_rank(lambda: read_alone(wanted, restore), waits)


def read_alone(state: Stateful, restore: Restore) -> None:
    """Read this rank's part. Not collective. Raises SnapshotError."""
    reader = _open(restore)
    try:
        with without_group_warning():
            load({KEY: state}, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        cause = str(error.failures[min(error.failures)][0]).strip() or "no message"
        advice = _OTHER_OPTIMIZER if f"{KEY}.optimizer." in cause else ""
        raise SnapshotError(f"{reader.path} cannot be loaded: {cause.splitlines()[0]}{advice}") from error


def _open(restore: Restore) -> FileSystemReader | MemoryReader:
    if restore.memory:
        return open_memory(restore.memory, SnapshotName(restore.manifest.step, restore.manifest.term))
    if restore.manifest.has_contiguous_tensors and isinstance(restore.path, Path):
        read_later_metadata()
        return ContiguousReader(restore.path)
    return open_reader(restore.path)
