"""Read and write a DCP directory in one process, with the full state in memory."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.errors import SnapshotError
from trainer.snapshot import Location
from trainer.snapshot.streams import Writer, open_reader, without_group_warning


def read_metadata(directory: Location) -> Metadata:
    """The metadata of a DCP directory. This unpickles `.metadata`: verify the snapshot first, or trust its origin."""
    try:
        return open_reader(directory).read_metadata()
    except (OSError, EOFError, ValueError) as error:
        raise SnapshotError(f"{directory} is no DCP directory: {error}") from error


def read_flat(directory: Location, metadata: Metadata, names: Collection[str] | None = None) -> dict[str, Any]:
    """Tensors (on the CPU) and objects by name. `names` selects some of them."""
    flat: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in metadata.state_dict_metadata.items()
        if names is None or name in names
    }
    try:
        with without_group_warning():
            load(flat, storage_reader=open_reader(directory), no_dist=True)
    except CheckpointException as error:
        raise SnapshotError(f"{directory} cannot be read: {error.failures[min(error.failures)][0]}") from error
    return flat


def nest(flat: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """Restore the nesting that DCP recorded for each flat name."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = (metadata.planner_data or {}).get(name, (name,))
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def write_whole(state: dict[str, Any], directory: Path) -> None:
    """Write a state as a single rank, with fsync. Raises SnapshotError."""
    try:
        with without_group_warning():
            save(state, storage_writer=Writer(directory), no_dist=True)
    except CheckpointException as error:
        raise SnapshotError(f"{directory} cannot be written: {error.failures[min(error.failures)][0]}") from error
