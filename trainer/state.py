"""What a snapshot holds of a run, and its way through torch's distributed checkpoint (DCP).

Everything is keyed by parameter name or is global: a state saved by n ranks of one strategy loads into m ranks of the
other. Optimizer settings are not in it: they come from the configuration.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from trainer.agreement import on_every_rank
from trainer.errors import SnapshotError
from trainer.optim import ShardedAdamW
from trainer.own_optimizer import prepare_state
from trainer.precision import LossScale
from trainer.waits import Waits

_PROBE_BYTES = 1024 * 1024


class RunState(Stateful):
    """Model, optimizer moments, the two counters that everything else is a function of, and the scale of fp16."""

    def __init__(self, loss_scale: LossScale) -> None:
        self.loss_scale = loss_scale
        self.step = 0  # completed optimizer steps
        self.samples_seen = 0
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Name the (unwrapped) model and its optimizer; once they are sharded and have memory."""
        self._model, self._optimizer = model, optimizer

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

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Without the optimizer's own count, which is the step."""
        assert self._optimizer is not None
        moments = self._optimizer.state.get(parameter, {})
        return {name: value for name, value in moments.items() if name != "step" and value is not None}


def write_state(state: RunState, directory: Path, waits: Waits) -> None:
    """Write the state's files and fsync them. Collective. Raises OSError, on every rank, when one rank cannot."""
    try:
        with waits.waiting():
            save({"run": state}, storage_writer=_Writer(directory, waits))
    except CheckpointException as error:
        _refuse_full(directory)
        raise _first_cause(error, directory) from error


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
            load({"run": state}, storage_reader=FileSystemReader(directory), no_dist=True)
    except CheckpointException as error:
        raise SnapshotError(f"{directory} cannot be loaded: {_first_cause(error, directory)}") from error


class _Writer(FileSystemWriter):
    """A save is an exchange of plans and results, during which this rank waits for its peers, and this between."""

    def __init__(self, directory: Path, waits: Waits) -> None:
        super().__init__(directory, sync_files=True)
        self._waits = waits

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._waits.end()
        written = super().write_data(plan, planner)
        self._waits.begin()
        return written


def _first_cause(error: CheckpointException, directory: Path) -> OSError:
    """The lowest failing rank's own error in one line; DCP's has the tracebacks of all ranks in it."""
    cause = error.failures[min(error.failures)][0]
    if isinstance(cause, OSError) and cause.errno is not None:
        return OSError(cause.errno, cause.strerror, str(cause.filename or directory))
    text = str(cause).strip() or "no message"
    return OSError(f"{type(cause).__name__}: {text.splitlines()[0]}")


def _refuse_full(directory: Path) -> None:
    """Raise the OSError behind a failed write: torch's own writer reports a full disk without its errno.

    Beside the directory, not in it: rank 0 may be removing that already.
    """
    probe = directory.with_name(f".probe-{os.getpid()}")
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
