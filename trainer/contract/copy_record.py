"""Copies of a state in files of an agent's memory: the record at the beginning of each file, and where a file is.

The record is erased before anything else in the file changes, and written last. It names the copy, so that an agent
need not read the header.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName

_RECORD = struct.Struct("<8sQQQQQQ")
_MAGIC = b"ELASTIC2"
RECORD_BYTES = _RECORD.size
NO_RECORD = bytes(RECORD_BYTES)
MIRRORED_AT = 512  # the offset of the record of the newest copy that another node has, too
FIRST_TENSOR_AT = 4096


@dataclass(frozen=True, kw_only=True)
class CopyRecord:
    """Which copy is in the file, and where its header is. Sizes and offsets are in bytes; the header is last."""

    name: SnapshotName
    header_at: int
    header_bytes: int
    checksum: int  # of the header, XXH3, 64 bits

    @property
    def end(self) -> int:
        return self.header_at + self.header_bytes

    def render(self) -> bytes:
        term = self.name.term
        own = (self.header_at, self.header_bytes, self.checksum, self.name.step, term.attempt, term.generation)
        return _RECORD.pack(_MAGIC, *own)


def parse_record(content: bytes) -> CopyRecord | None:
    """None if the file has no whole copy."""
    if len(content) < RECORD_BYTES:
        return None
    magic, header_at, header_bytes, checksum, step, attempt, generation = _RECORD.unpack(content[:RECORD_BYTES])
    if magic != _MAGIC:
        return None
    name = SnapshotName(step, Term(attempt, generation))
    return CopyRecord(name=name, header_at=header_at, header_bytes=header_bytes, checksum=checksum)


@dataclass(frozen=True, kw_only=True)
class CopyFile:
    """A file in the memory of a node: of this one, or of the one whose agent serves at `server`."""

    path: str  # /proc/PID/fd/FD of its agent
    server: str = ""
    is_mirror: bool = False  # it mirrors a file of another node
    is_handover: bool = False  # it holds the whole state that a survivor hands over

    @property
    def number(self) -> int:
        """The descriptor, by which the server knows the file."""
        return int(self.path.rpartition("/")[2])
