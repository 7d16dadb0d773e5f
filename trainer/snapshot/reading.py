"""Read a snapshot's tensors directly into their final memory.

torch's own reader makes a second copy of every tensor and unpickles it, which for a small model is most of a restart.
Tensors of this trainer are contiguous in their file, as the manifest says. Such a tensor is read by read(2) if all of
it is wanted, on the CPU and in its own type. torch's reader reads everything else.
"""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

_RECORD = b"archive/data/0"  # torch.save's name for the storage of a single tensor
_PREFIX_BYTES = 1024  # the header of a saved tensor
# A ZIP file (PKWARE, APPNOTE 4.3.7 and 4.3.9): local header, name, extra field, content, data descriptor.
_HEADER = struct.Struct("<4s22xHH")
_HEADER_MAGIC, _DESCRIPTOR_MAGIC = b"PK\x03\x04", b"PK\x07\x08"


class ContiguousReader(FileSystemReader):
    """Reads snapshots whose tensors are all contiguous. Raises what FileSystemReader does, and OSError."""

    _metadata: Metadata | None = None

    def read_metadata(self, *args: object, **options: object) -> Metadata:
        """Read it once: the caller needs it before DCP does."""
        if self._metadata is None:
            self._metadata = super().read_metadata(*args, **options)
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **options: object) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *args, **options)
        self._described = metadata.state_dict_metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        others: list[ReadItem] = []
        for name, items in by_file.items():
            with (Path(self.path) / name).open("rb", buffering=0) as file:
                others += [item for item in items if not self._read(item, file, planner)]
        return super().read_data(replace(plan, items=others), planner)

    def _read(self, item: ReadItem, file: io.FileIO, planner: LoadPlanner) -> bool:
        """Read the item, and return False if it must be read in another way."""
        described = self._described[item.storage_index.fqn]
        if item.type != LoadItemType.TENSOR or any(item.storage_offsets):
            return False
        target = planner.resolve_tensor(item).detach()
        if not _is_plain(target) or target.dtype != _dtype_of(described):
            return False
        begin = self.storage_data[item.storage_index].offset
        file.seek(begin)
        content = _find_content(file.read(_PREFIX_BYTES))
        if content is None:
            return False
        file.seek(begin + content)
        _fill(target.view(-1).view(torch.uint8).numpy().data, file)
        if file.read(len(_DESCRIPTOR_MAGIC)) != _DESCRIPTOR_MAGIC:
            return False  # a part of a larger tensor
        planner.commit_tensor(item, target)
        return True


def _find_content(prefix: bytes) -> int | None:
    """Offset of the values in a saved tensor, in bytes. None if torch saved it in another layout."""
    name = prefix.find(_RECORD)
    if name < _HEADER.size:
        return None
    magic, name_bytes, extra_bytes = _HEADER.unpack_from(prefix, name - _HEADER.size)
    return None if magic != _HEADER_MAGIC else name + int(name_bytes) + int(extra_bytes)


def _is_plain(target: Tensor) -> bool:
    return target.device.type == "cpu" and target.is_contiguous() and target.numel() > 0 and not target.is_conj()


def _dtype_of(described: object) -> torch.dtype | None:
    return described.properties.dtype if isinstance(described, TensorStorageMetadata) else None


def _fill(memory: memoryview, file: io.FileIO) -> None:
    """Read in a loop: Linux reads at most two GiB in one call."""
    while memory:
        count = file.readinto(memory)
        if not count:
            raise EOFError(f"{file.name} ends within a tensor")
        memory = memory[count:]
