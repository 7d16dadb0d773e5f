"""The part of `trainer.supervised` that needs torch: it saves and loads a distributed checkpoint (DCP).

State is keyed by parameter name and sharded as in memory. Any number of ranks can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.checkpoint.storage import StorageReader, WriteResult
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.futures import Future
from torch.optim import Optimizer

from trainer.contract.copy_record import CopyFile
from trainer.contract.manifest import SnapshotName
from trainer.script.optimizer_state import find_targets, nest, read_optimizer, write_optimizer
from trainer.script.rank_parts import RankParts, RankReader
from trainer.snapshot.later_metadata import read_later_metadata
from trainer.snapshot.memory_reading import open_memory
from trainer.snapshot.streams import COPY_AHEAD_BYTES, Writer, in_one_line, without_group_warning


def agree(flags: Sequence[bool], fingerprint: int = 0) -> tuple[list[bool], bool]:
    """For each flag, whether any rank has set it, and whether all ranks have the same fingerprint other than 0.

    Without a process group, each rank keeps its own flags.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return list(flags), False
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else torch.device("cpu")
    own = torch.tensor([*flags, fingerprint, -fingerprint], dtype=torch.int64, device=device)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    *found, greatest, negated_least = own.tolist()
    return [flag > 0 for flag in found], greatest == -negated_least != 0


def save(objects: Mapping[str, object], folder: Path) -> None:
    """Write the objects' state, and each rank's own values where they differ, with fsync. Collective.

    Raises OSError on all ranks if one of them fails.
    """
    alone = not dist.is_initialized()
    parts = RankParts(_state_of(objects))
    state = parts.state if alone or agree([], parts.fingerprint)[1] else parts.divide()
    try:
        with without_group_warning():
            writer = _Writer(folder, copy_ahead_bytes=COPY_AHEAD_BYTES)
            save_checkpoint(state, storage_writer=writer, no_dist=alone)
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        raise OSError(f"rank {rank}: {in_one_line(error, folder)}") from failed


def load(objects: Mapping[str, object], folder: Path, rank: int) -> None:
    """Read a verified snapshot into the objects. Where ranks differ, read the values of `rank`. Collective."""
    read_later_metadata()
    _load(objects, RankReader(folder, rank), alone=not dist.is_initialized())


def load_from_memory(objects: Mapping[str, object], name: SnapshotName, files: Iterable[str]) -> None:
    """Read a verified state in files of this node's memory into the objects. Raises DamagedSnapshot if it is gone."""
    _load(objects, open_memory([CopyFile(path=file) for file in files], name), alone=True)


def _load(objects: Mapping[str, object], reader: StorageReader, *, alone: bool) -> None:
    metadata, state = reader.read_metadata(), dict[str, Any]()
    for name, subject in objects.items():
        if _is_by_name(subject, objects):
            state |= find_targets(name, subject, _owner(subject, objects), metadata)
        else:
            state[name] = read_object(subject, objects)
    with without_group_warning():
        load_checkpoint(state, storage_reader=reader, no_dist=alone)
    for name, subject in objects.items():
        if _is_by_name(subject, objects):
            write_optimizer(subject, _owner(subject, objects), nest(name, state, metadata))
        else:
            _write(subject, state[name], objects)


class _Writer(Writer):
    """Raises errors of one line."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Summarize an error here: it reaches the other ranks without its causes."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise in_one_line(error, Path(self.path)) from error


def _state_of(objects: Mapping[str, object]) -> dict[str, Any]:
    return {name: read_object(subject, objects) for name, subject in objects.items()}


def read_object(subject: Any, objects: Mapping[str, object]) -> Any:
    """The state of one of the objects. Collective if it is sharded."""
    if isinstance(subject, nn.Module):
        return get_model_state_dict(subject)
    if _is_by_name(subject, objects):
        return read_optimizer(subject, _owner(subject, objects))
    if isinstance(subject, Optimizer):
        return get_optimizer_state_dict(_owner(subject, objects), subject)
    return subject.state_dict()


def _write(subject: Any, state: Any, objects: Mapping[str, object]) -> None:
    if isinstance(subject, nn.Module):
        set_model_state_dict(subject, state)
    elif isinstance(subject, Optimizer):
        set_optimizer_state_dict(_owner(subject, objects), subject, state)
    else:
        subject.load_state_dict(state)


def _is_by_name(subject: object, objects: Mapping[str, object]) -> TypeGuard[Optimizer]:
    """FullyShardedDataParallel flattens parameters. Only torch knows the names of its optimizer's tensors."""
    if not isinstance(subject, Optimizer):
        return False
    return not any(isinstance(each, FullyShardedDataParallel) for each in _owner(subject, objects).modules())


def _owner(optimizer: Optimizer, objects: Mapping[str, object]) -> nn.Module:
    """The model whose parameters the optimizer updates: their names become the keys of its state."""
    first = optimizer.param_groups[0]["params"][0]
    for subject in objects.values():
        if isinstance(subject, nn.Module) and any(parameter is first for parameter in subject.parameters()):
            return subject
    raise ValueError(f"restore() got a {type(optimizer).__name__} without the model whose parameters it updates")
