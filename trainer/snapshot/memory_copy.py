"""A part of the state, or a survivor's whole state, in a file in memory: how it is written, verified and read.

The file begins with a record of where the header is. The header names each tensor's place and checksum. A copy that was
cut off anywhere has no record. What was changed after that fails its checksum. A reader looks at the record again when
it has read.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from trainer.contract.copy_record import (
    FIRST_TENSOR_AT,
    MIRRORED_AT,
    NO_RECORD,
    RECORD_BYTES,
    CopyRecord,
    parse_record,
)
from trainer.contract.manifest import Manifest, SnapshotName
from trainer.errors import DamagedSnapshot
from trainer.snapshot.writing import tensors_in

_ALIGNMENT = 64  # of each tensor
_READERS = 4  # xxhash releases the interpreter lock
_READ_ALONE_BYTES = 64 << 20  # for less than this, threads cost more time than they save


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor is in the file. `shape` and `dtype` are those of the part in this file."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    checksum: int  # XXH3, 64 bits

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a copy holds. `metadata` describes the whole state; only part 0 has it."""

    tensors: dict[MetadataIndex, Place]
    others: dict[MetadataIndex, bytes]
    metadata: Metadata | None


@dataclass(frozen=True, kw_only=True)
class Header:
    """Which copy it is: part number `part` of `parts`. `packed` has its contents."""

    manifest: Manifest
    part: int
    parts: int
    packed: bytes

    @property
    def name(self) -> SnapshotName:
        return SnapshotName(self.manifest.step, self.manifest.term)

    @cached_property
    def contents(self) -> Contents:
        """Unpickled when it is needed: many copies are found, and one is read."""
        found: Contents = pickle.loads(self.packed)
        return found

    def verify(self, index: MetadataIndex, content: Tensor) -> None:
        """Raises DamagedSnapshot if the checksum of a tensor's content differs."""
        if xxhash.xxh3_64_intdigest(_bytes_of(content)) != self.contents.tensors[index].checksum:
            what = f"part {self.part} has changed in memory (checksum of {index.fqn} differs)"
            raise DamagedSnapshot(str(self.name), what)

    def refuse_replaced(self, sealed: bytes, now: bytes) -> None:
        """Raises DamagedSnapshot if the file has another record than when this copy was opened."""
        if now != sealed:
            raise DamagedSnapshot(str(self.name), f"part {self.part} was replaced in memory")


class CopyWriter:
    """Writes one copy after another to a file. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._views: dict[MetadataIndex, tuple[int, Tensor]] = {}
        self._sealed = NO_RECORD
        self._end = FIRST_TENSOR_AT

    def reserve(self, sources: Mapping[MetadataIndex, Tensor]) -> None:
        """Reserve memory for tensors like these: later there may be none, and writing would end the process.

        A copy that is in the file stays as it is.
        """
        offsets: dict[MetadataIndex, int] = {}
        end = FIRST_TENSOR_AT
        for index, source in sources.items():
            offsets[index] = end
            end = _end_after(end, source)
        os.posix_fallocate(self._file, 0, end)
        self._end = end
        memory = torch.frombuffer(mmap.mmap(self._file, end), dtype=torch.uint8)
        self._views = {
            index: (offset, memory[offset : offset + sources[index].nbytes].view(sources[index].dtype))
            for index, offset in offsets.items()
        }

    def view(self, index: MetadataIndex, source: Tensor) -> Tensor:
        """The memory for a tensor. Raises KeyError if none like it was reserved."""
        _, view = self._views[index]
        if view.dtype != source.dtype or view.numel() != source.numel():
            raise KeyError(f"{index.fqn} has another size than before")
        return view.view(source.shape)

    def erase(self) -> None:
        """From now on the file has no copy."""
        os.pwrite(self._file, NO_RECORD, 0)

    def seal(
        self,
        staged: Mapping[MetadataIndex, Tensor | BytesIO],
        manifest: Manifest,
        *,
        part: int,
        parts: int,
        metadata: Metadata | None,
    ) -> None:
        """Write everything that is not in `view` yet, the header, and then the record."""
        tensors: dict[MetadataIndex, Place] = {}
        for index, value in tensors_in(staged).items():
            offset, _ = self._views[index]
            view = self.view(index, value)
            if view.data_ptr() != value.data_ptr():
                view.copy_(value)
            tensors[index] = _place_of(value, offset, xxhash.xxh3_64_intdigest(_bytes_of(view)))
        contents = Contents(tensors=tensors, others=_others_in(staged), metadata=metadata)
        self._finish(contents, manifest, part=part, parts=parts)

    def write_whole(
        self, values: Mapping[MetadataIndex, Tensor | BytesIO], manifest: Manifest, metadata: Metadata
    ) -> None:
        """Write a whole state once, without reserved memory: the kernel need not clear the pages before."""
        tensors: dict[MetadataIndex, Place] = {}
        self._end = FIRST_TENSOR_AT
        for index, value in tensors_in(values).items():
            content = _bytes_of(value.resolve_conj().resolve_neg())  # no copy of other tensors
            tensors[index] = _place_of(value, self._end, xxhash.xxh3_64_intdigest(content))
            self._write(content, self._end)
            self._end = _end_after(self._end, value)
        contents = Contents(tensors=tensors, others=_others_in(values), metadata=metadata)
        self._finish(contents, manifest, part=0, parts=1)

    def _write(self, content: memoryview, offset: int) -> None:
        """One call writes at most 2 GiB (write(2))."""
        while content:
            written = os.pwrite(self._file, content, offset)
            content, offset = content[written:], offset + written

    def _finish(self, contents: Contents, manifest: Manifest, *, part: int, parts: int) -> None:
        header = Header(manifest=manifest, part=part, parts=parts, packed=pickle.dumps(contents))
        content = pickle.dumps(header)
        self._write(memoryview(content), self._end)
        checksum = xxhash.xxh3_64_intdigest(content)
        record = CopyRecord(name=header.name, header_at=self._end, header_bytes=len(content), checksum=checksum)
        self._sealed = record.render()
        os.pwrite(self._file, self._sealed, 0)

    @property
    def is_mirrored(self) -> bool:
        """Whether the agent of another node has what was sealed, too."""
        return self._sealed == NO_RECORD or os.pread(self._file, RECORD_BYTES, MIRRORED_AT) == self._sealed

    def free(self) -> None:
        """Give the memory back. The file has no copy then."""
        self.erase()
        size = os.fstat(self._file).st_size
        if size > 0:
            mmap.mmap(self._file, size).madvise(mmap.MADV_REMOVE)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            os.close(self._file)


class MemoryCopy:
    """A copy as it was sealed when it was opened."""

    def __init__(self, path: str, file: int, record: bytes, header: Header) -> None:
        self.path, self.header = path, header
        self._file, self._record = file, record
        size = os.fstat(file).st_size
        self._memory = torch.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)

    def __del__(self) -> None:
        os.close(self._file)

    def tensor(self, index: MetadataIndex) -> Tensor:
        """The stored part of a tensor. Do not write to it."""
        place = self.header.contents.tensors[index]
        return self._memory[place.offset : place.offset + place.size_bytes].view(place.dtype).view(place.shape)

    def verify(self) -> None:
        """Raises DamagedSnapshot for the first tensor whose checksum differs, and if the copy was replaced."""
        tensors = self.header.contents.tensors
        if self._memory.numel() < _READ_ALONE_BYTES:
            for each in tensors:
                self._verify(each)
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self._verify, tensors))
        self.refuse_replaced()

    def refuse_replaced(self) -> None:
        """Raises DamagedSnapshot if another copy was begun in the same file since this one was opened."""
        self.header.refuse_replaced(self._record, os.pread(self._file, RECORD_BYTES, 0))

    def _verify(self, index: MetadataIndex) -> None:
        self.header.verify(index, self.tensor(index))


def open_copy(path: str) -> MemoryCopy | None:
    """The copy in a file. None if there is no whole one."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        record = os.pread(file, RECORD_BYTES, 0)
        header = _read_header(file, record)
    except BaseException:
        os.close(file)
        raise
    if header is None:
        os.close(file)
        return None
    return MemoryCopy(path, file, record, header)


def _read_header(file: int, content: bytes) -> Header | None:
    record = parse_record(content)
    if record is None or record.end > os.fstat(file).st_size:
        return None
    return parse_header(os.pread(file, record.header_bytes, record.header_at), record)


def parse_header(content: bytes, record: CopyRecord) -> Header | None:
    """None if it is not the header that the record means."""
    if xxhash.xxh3_64_intdigest(content) != record.checksum:
        return None
    header: Header = pickle.loads(content)
    return header


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, without a copy if it is contiguous."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _end_after(offset: int, tensor: Tensor) -> int:
    return -(-(offset + tensor.nbytes) // _ALIGNMENT) * _ALIGNMENT


def _place_of(tensor: Tensor, offset: int, checksum: int) -> Place:
    return Place(offset=offset, shape=tuple(tensor.shape), dtype=tensor.dtype, checksum=checksum)


def _others_in(values: Mapping[MetadataIndex, Tensor | BytesIO]) -> dict[MetadataIndex, bytes]:
    return {index: value.getvalue() for index, value in values.items() if isinstance(value, BytesIO)}
