"""Restore the state of a run with torch's distributed checkpoint (DCP).

The optimizer gets the tensors that the snapshot holds and no others.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from trainer.contract.manifest import IMPORTED, Manifest, SnapshotName
from trainer.errors import SnapshotError
from trainer.snapshot.later_metadata import read_later_metadata
from trainer.snapshot.lineage import Restore
from trainer.snapshot.memory_reading import MemoryReader, open_memory
from trainer.snapshot.own_optimizer import create_state
from trainer.snapshot.reading import ContiguousReader
from trainer.snapshot.run_state import KEY, RunState
from trainer.snapshot.streams import open_reader, without_group_warning
from trainer.snapshot.update_counts import NAMES, UPDATES, Counts, find_entries, find_order, unpack_counts
from trainer.worker.agreement import succeed_together
from trainer.worker.waits import Waits

_MOMENTS = f"{KEY}.optimizer."
_OTHER_OPTIMIZER = (
    "; it was made by another optimizer: export it and import it with --weights, to continue from its weights alone"
)


def read_state(state: RunState, restore: Restore, waits: Waits) -> None:
    """Load a verified snapshot into the attached model and optimizer. Collective. Raises SnapshotError.

    Each rank plans and reads on its own, and then all agree that all succeeded. DCP's exchange of plans checks nothing
    more and takes several times as long.
    """
    succeed_together(lambda: read_alone(state, restore), waits)


def read_alone(state: RunState, restore: Restore) -> None:
    """Read this rank's part. Not collective. Raises SnapshotError."""
    reader = _open(restore)
    try:
        wanted = _Wanted(state, reader.read_metadata(), restore.manifest)
        with without_group_warning():
            load({KEY: wanted}, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        cause = str(error.failures[min(error.failures)][0]).strip() or "no message"
        advice = _OTHER_OPTIMIZER if _MOMENTS in cause else ""
        raise SnapshotError(f"{reader.path} cannot be loaded: {cause.splitlines()[0]}{advice}") from error
    except (OSError, pickle.UnpicklingError, SnapshotError) as error:
        raise SnapshotError(f"{reader.path} cannot be loaded: {error}") from error
    if wanted.lacks_moments:
        raise SnapshotError(f"{reader.path} cannot be loaded: it has no state of the optimizer{_OTHER_OPTIMIZER}")


class _Wanted(Stateful):
    """What to read of a snapshot. DCP writes into the tensors of `state_dict`."""

    def __init__(self, state: RunState, metadata: Metadata, manifest: Manifest) -> None:
        self._state, self._metadata, self._manifest = state, metadata, manifest
        self._held = _find_moments(metadata)
        self._makes_moments = False

    def state_dict(self) -> dict[str, Any]:
        if self._manifest.has_optimizer:
            self._create_moments()
        found = self._state.state_dict()
        found["optimizer"] = {name: own for name, own in found["optimizer"].items() if name in self._held}
        for kind in (UPDATES, NAMES):
            found.pop(kind, None)
        return {**found, **find_entries(self._metadata, f"{KEY}.")}

    def _create_moments(self) -> None:
        optimizer = self._state.optimizer
        own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = {name: each for name, each in self._state.parameters.items() if each in own}
        if not self._held and not optimizer.state:
            create_state(optimizer, [each for each in named.values() if each.requires_grad])
            self._makes_moments = any(value is not None for own in optimizer.state.values() for value in own.values())
            optimizer.state.clear()
        create_state(optimizer, [parameter for name, parameter in named.items() if name in self._held])
        for name, parameter in named.items():
            if made := optimizer.state.get(parameter):
                for kind, held in self._held.get(name, {}).items():
                    if made.get(kind) is None:
                        made[kind] = _zeros_for(parameter, held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = self._state
        state.step, state.samples_seen = state_dict["step"], state_dict["samples_seen"]
        state.loss_scale.load_state_dict(state_dict["loss_scale"])
        if state.optimizer.state:
            self._set_counts(unpack_counts(state_dict, self._find_order(), state.parameters))

    def _set_counts(self, counts: Counts | None) -> None:
        """Set the number of updates of each parameter. Without `counts`, each one has had all updates."""
        state = self._state
        every = state.step - state.loss_scale.skipped_steps
        for name, parameter in state.parameters.items():
            moments = state.optimizer.state.get(parameter, {})
            if "step" in moments:
                moments["step"].fill_(every if counts is None else counts.get(name, 0))

    def _find_order(self) -> list[str] | None:
        """Return the order of counts without names, or None. After an import, it is known only if it is the model's."""
        order = find_order(self._metadata, f"{KEY}.model.", self._state.model)
        is_known = self._manifest.strategy != IMPORTED or order == list(self._state.parameters)
        return order if is_known else None

    @property
    def lacks_moments(self) -> bool:
        """Whether the updates before the snapshot would have made moments, and it has none."""
        return self._makes_moments and self._state.step > self._state.loss_scale.skipped_steps


def _find_moments(metadata: Metadata) -> dict[str, dict[str, TensorStorageMetadata]]:
    """The moments in a snapshot, by the parameter's name and their own."""
    held: dict[str, dict[str, TensorStorageMetadata]] = {}
    for path, entry in metadata.state_dict_metadata.items():
        if path.startswith(_MOMENTS) and isinstance(entry, TensorStorageMetadata):
            name, _, kind = path.removeprefix(_MOMENTS).rpartition(".")
            held.setdefault(name, {})[kind] = entry
    return held


def _zeros_for(parameter: nn.Parameter, held: TensorStorageMetadata) -> Tensor:
    """Memory for a tensor that the optimizer does not make in its first step."""
    dtype = held.properties.dtype
    if isinstance(parameter, DTensor) and held.size == parameter.shape:
        return torch.zeros_like(parameter, dtype=dtype)
    return torch.zeros(held.size, dtype=dtype, device=parameter.device)


def _open(restore: Restore) -> FileSystemReader | MemoryReader:
    if restore.memory:
        return open_memory(restore.memory, SnapshotName(restore.manifest.step, restore.manifest.term))
    if restore.manifest.has_contiguous_tensors and isinstance(restore.path, Path):
        read_later_metadata()
        return ContiguousReader(restore.path)
    return open_reader(restore.path)
