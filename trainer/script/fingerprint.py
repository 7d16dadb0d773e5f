"""A checksum of nested values, by which ranks find out whether they have the same values without sending them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import torch
import xxhash
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)
_COLUMNS = 4096
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their size in bytes


def fingerprint(value: object) -> int:
    """Return 63 bits, never 0. Of tensors that may be sharded, such as DTensors, only the type counts.

    Raises what pickle does.
    """
    checksum = xxhash.xxh3_64()
    _add(value, checksum.update)
    return (checksum.intdigest() >> 1) or 1


def _add(value: object, update: Callable[[bytes], None]) -> None:
    """Pickle each value on its own: a pickle of several depends on which of them are the same object."""
    if isinstance(value, Mapping):
        update(f"{{{len(value)}".encode())
        for key, each in value.items():
            _add(key, update)
            _add(each, update)
    elif isinstance(value, (list, tuple)):
        update(f"[{len(value)}".encode())
        for each in value:
            _add(each, update)
    elif isinstance(value, Tensor) and type(value) not in _PLAIN:
        update(type(value).__qualname__.encode())
    elif isinstance(value, Tensor):
        update(f"{value.dtype}{list(value.shape)}".encode())
        for part in (_summarize if value.is_cuda else _flatten)(value.detach()):
            update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    else:
        update(pickle.dumps(value))


def _flatten(tensor: Tensor) -> tuple[Tensor, ...]:
    return (tensor.reshape(-1),)


def _summarize(tensor: Tensor) -> tuple[Tensor, ...]:
    """View n elements as integers in rows of 4096. Return the sums of columns [4096], sums of rows
    [n // 4096], and the elements that fill no row [n % 4096].

    The sums of the columns alone would not notice exchanged rows. A copy of the tensor to the host would take longer.
    """
    bits = tensor.reshape(-1).view(_INTEGERS.get(tensor.itemsize, torch.uint8))
    whole = bits.numel() // _COLUMNS * _COLUMNS
    table = bits[:whole].view(-1, _COLUMNS)
    return table.sum(0, dtype=torch.int64), table.sum(1, dtype=torch.int64), bits[whole:]
