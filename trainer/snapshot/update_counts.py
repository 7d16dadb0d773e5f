"""How often an optimizer has updated each parameter, as one tensor and a text with the names instead of many scalars.

The checksum of the names is the key of both. Ranks that count for different parameters have different keys, so a
snapshot holds the counts of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.errors import SnapshotError

UPDATES, NAMES = "updates", "updated"  # keys in a snapshot: the counts [n], and a text with n names in lines
Counts = dict[str, float]  # updates by parameter name


def pack_counts(counts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the entries of a snapshot: the counts in float64, and their names. Empty if nothing is counted."""
    if not counts:
        return {}
    first, names = next(iter(counts.values())).double(), "\n".join(counts)
    key = xxhash.xxh3_64_hexdigest(names.encode())
    return {UPDATES: {key: torch.stack([count.to(first) for count in counts.values()])}, NAMES: {key: names}}


def find_entries(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """Return the entries of a snapshot below `prefix`, with zeros and None for DCP to replace."""
    found: dict[str, Any] = {}
    for path, entry in metadata.state_dict_metadata.items():
        kind, _, key = path.removeprefix(prefix).partition(".")
        if path.startswith(prefix) and kind in (UPDATES, NAMES):
            value = torch.zeros(entry.size, dtype=torch.float64) if isinstance(entry, TensorStorageMetadata) else None
            if key:
                found.setdefault(kind, {})[key] = value
            else:
                found[kind] = value
    return found


def unpack_counts(entries: Mapping[str, Any], order: Sequence[str] | None, names: Iterable[str]) -> Counts | None:
    """Return the counts, or None if the snapshot has none.

    Older snapshots have one tensor without names, for the parameters in `order`, or for those of `names` if all counts
    are equal. `order` is None if it is not known. Raises SnapshotError if it is needed and not known.
    """
    updates = entries.get(UPDATES)
    if updates is None:
        return None
    if isinstance(updates, Tensor):
        return _count_in_order(updates.tolist(), order, names)
    counts: Counts = {}
    for key, own in updates.items():
        for name, count in zip(entries[NAMES][key].split("\n"), own.tolist(), strict=True):
            counts[name] = max(count, counts.get(name, 0.0))
    return counts


def find_order(metadata: Metadata, prefix: str, model: nn.Module) -> list[str]:
    """Return the names of the model's parameters, in the order of the model that was saved.

    A parameter with several names is listed once: under the name that `named_parameters` gives it now, where the saved
    model has the first of its names.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    every = {prefix + name: names[each] for name, each in model.named_parameters(remove_duplicate=False)}
    return list(dict.fromkeys(every[path] for path in metadata.planner_data or () if path in every))


def _count_in_order(counts: list[float], order: Sequence[str] | None, names: Iterable[str]) -> Counts:
    if order is not None and len(order) == len(counts):
        return dict(zip(order, counts, strict=True))
    if len(set(counts)) == 1:
        return dict.fromkeys(names, counts[0])
    raise SnapshotError(
        "it is of an older version and does not say which parameter each count of updates belongs to; restore it "
        "with the model that it was saved with, whose parameters have another order or number"
    )
