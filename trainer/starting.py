"""What a run begins with: a snapshot's state or first values, if they are its own; and what is told of it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from trainer.agreement import on_every_rank
from trainer.contract.config import TrainerConfig
from trainer.contract.exit_record import EventKind
from trainer.data import describe_difference
from trainer.errors import DataError, SnapshotError
from trainer.heartbeat import Heartbeat
from trainer.initial import Draft, named_tensors
from trainer.lineage import Beginning, Restore
from trainer.state import RunState, read_state
from trainer.task import Task
from trainer.telling import tell_restored
from trainer.waits import Waits


def write_values(
    config: TrainerConfig,
    task: Task,
    draft: Draft,
    beginning: Beginning,
    state: RunState,
    waits: Waits,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Fill model and optimizer, and attach them to `state`. Collective. Raises SnapshotError and DataError."""
    state.attach(model, optimizer)
    names = named_tensors(model).keys()
    if beginning.restore is None:
        draft.write(model, names)
        return
    _refuse_other_run(config, task, beginning.restore)
    draft.write(model, names - model.state_dict().keys())  # buffers that no snapshot holds
    read_state(state, beginning.restore.path, waits)


def _refuse_other_run(config: TrainerConfig, task: Task, restore: Restore) -> None:
    """A snapshot fits only its own model; one of this job also only its own data."""
    details, name = restore.manifest.details, restore.path.name
    saved_config, saved_data = details.get("config"), details.get("data")
    for field in ("task", "preset"):
        wanted = getattr(config, field)
        saved = saved_config.get(field, wanted) if isinstance(saved_config, dict) else wanted
        if saved != wanted:
            raise SnapshotError(f"{name} holds a model of {field} {saved!r}, the configuration says {wanted!r}")
    if not (restore.is_own and isinstance(saved_data, dict)):
        return
    difference = describe_difference(task.source.fingerprint, saved_data)
    if difference is not None:
        raise DataError(f"data {task.name} changed since {name}: {difference}; give back the data, or start a new job")


def refuse_different_data(task: Task, waits: Waits) -> None:
    """Raise DataError on all ranks when one of them sees other data than rank 0."""
    fingerprints = on_every_rank(lambda: task.source.fingerprint, waits)
    for rank, fingerprint in enumerate(fingerprints):
        difference = describe_difference(fingerprint, fingerprints[0])
        if difference is not None:
            raise DataError(f"rank {rank} sees other data than rank 0: {difference}; give all nodes the same files")


def tell_beginning(beginning: Beginning, notices: tuple[str, ...], heartbeat: Heartbeat) -> None:
    """Rank 0 journals what was restored, and what the configuration asks for in vain."""
    if dist.get_rank() != 0:
        return
    for notice in notices:
        heartbeat.tell(EventKind.SETTING_IGNORED, notice, {})
    if beginning.restore is not None:
        tell_restored(beginning.restore, dist.get_world_size(), heartbeat.tell)
