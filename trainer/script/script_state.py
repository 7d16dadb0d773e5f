"""The part of `trainer.supervised` that needs torch: models and optimizers to and from a distributed checkpoint (DCP).

State is kept by parameter name, sharded as it lies, so that any number of ranks can read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from trainer.snapshot.streams import in_one_line, open_reader


def agree(flags: Sequence[bool]) -> list[bool]:
    """For each flag whether any rank has set it. Ranks without a process group keep their own."""
    if not (dist.is_available() and dist.is_initialized()):
        return list(flags)
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else torch.device("cpu")
    counts = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(counts)
    return [count > 0 for count in counts.tolist()]


def save(objects: Mapping[str, object], folder: Path) -> None:
    """Write the objects' state and fsync it. Collective. Raises OSError on all ranks when one of them cannot."""
    alone = not dist.is_initialized()
    try:
        with _quiet():
            save_checkpoint(_state_of(objects), storage_writer=Writer(folder, sync_files=True), no_dist=alone)
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        raise OSError(f"rank {rank}: {in_one_line(error, folder)}") from failed


def load(objects: Mapping[str, object], folder: Path) -> None:
    """Read a verified snapshot into the objects. Collective."""
    state = _state_of(objects)
    with _quiet():
        load_checkpoint(state, storage_reader=open_reader(folder), no_dist=not dist.is_initialized())
    for name, subject in objects.items():
        _write(subject, state[name], objects)


class Writer(FileSystemWriter):
    """torch's own; what it raises is one line, and what it pickles is read by any Python."""

    @property
    def checkpoint_id(self) -> str:
        return str(self.path)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """What fails is put into one line here: an exception goes to the other ranks without those behind it."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise in_one_line(error, Path(self.path)) from error


def _state_of(objects: Mapping[str, object]) -> dict[str, Any]:
    return {name: _read(subject, objects) for name, subject in objects.items()}


def _read(subject: Any, objects: Mapping[str, object]) -> Any:
    if isinstance(subject, nn.Module):
        return get_model_state_dict(subject)
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


def _owner(optimizer: Optimizer, objects: Mapping[str, object]) -> nn.Module:
    """The model whose parameters it updates: their names are the optimizer's keys."""
    first = optimizer.param_groups[0]["params"][0]
    for subject in objects.values():
        if isinstance(subject, nn.Module) and any(parameter is first for parameter in subject.parameters()):
            return subject
    raise ValueError(f"restore() got a {type(optimizer).__name__} without the model whose parameters it updates")


@contextmanager
def _quiet() -> Iterator[None]:
    """DCP warns of what was asked for: to work without a group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
