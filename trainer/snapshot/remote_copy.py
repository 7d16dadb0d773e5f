"""A copy in the memory of another node, read through its agent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trainer.contract.copy_record import CopyFile, parse_record
from trainer.elastic.copies.copy_client import CopyClient
from trainer.errors import DamagedSnapshot
from trainer.snapshot.memory_copy import parse_header


class RemoteCopy:
    """A copy as it was sealed when it was opened. Raises OSError, and DamagedSnapshot if there is no whole one."""

    def __init__(self, file: CopyFile, client: CopyClient) -> None:
        """`client` is connected to the file's server."""
        self.file, self._client = file, client
        self._record = client.read_record(file.number)
        record = parse_record(self._record)
        content = b"" if record is None else client.read(file.number, record.header_at, record.header_bytes)
        header = None if record is None else parse_header(bytes(content), record)
        if header is None:
            raise DamagedSnapshot(file.path, "has no copy")
        self.header = header

    def tensor(self, index: MetadataIndex) -> Tensor:
        """The stored part of a tensor. Raises DamagedSnapshot if its checksum differs."""
        place = self.header.contents.tensors[index]
        if not place.size_bytes:
            return torch.empty(place.shape, dtype=place.dtype)
        tensor = torch.frombuffer(
            self._client.read(self.file.number, place.offset, place.size_bytes), dtype=torch.uint8
        )
        self.header.verify(index, tensor)
        return tensor.view(place.dtype).view(place.shape)

    def refuse_replaced(self) -> None:
        """Raises DamagedSnapshot if another copy was begun in the same file since this one was opened."""
        self.header.refuse_replaced(self._record, self._client.read_record(self.file.number))
