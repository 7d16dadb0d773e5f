"""Compare two snapshots tensor by tensor. Memory holds one pair of tensors at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer import snapshot
from trainer.snapshot import Location
from trainer.snapshot.whole import read_flat, read_metadata


def compare(left: Location, right: Location) -> list[str]:
    """One line for each difference. Equal states give none, however they are sharded. Raises SnapshotError.

    Both are verified first.
    """
    for directory in (left, right):
        snapshot.verify(directory)
    of_left, of_right = read_metadata(left), read_metadata(right)
    in_left, in_right = of_left.state_dict_metadata.keys(), of_right.state_dict_metadata.keys()
    lines = [f"{name}: only in {left}" for name in sorted(in_left - in_right)]
    lines += [f"{name}: only in {right}" for name in sorted(in_right - in_left)]
    for name in sorted(in_left & in_right):
        difference = describe(read_flat(left, of_left, [name])[name], read_flat(right, of_right, [name])[name])
        lines += [] if difference is None else [f"{name}: {difference}"]
    return lines


def describe(left: Any, right: Any) -> str | None:
    """How two values differ, or None when they are equal bit for bit."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        return None if left == right else f"{left} against {right}"
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{tuple(left.shape)} {left.dtype} against {tuple(right.shape)} {right.dtype}"
    if torch.equal(_bytes_of(left), _bytes_of(right)):
        return None
    distance_N = (left.double() - right.double()).abs().flatten()
    most, largest = distance_N.max().item(), max(left.double().abs().max().item(), right.double().abs().max().item())
    count = int((distance_N != 0).sum())  # NaN counts as a difference
    share = f" ({most / largest:.1e} of the largest)" if largest else ""
    return f"{count} of {left.numel()} values differ, by {most:.3g} at most{share}"


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
