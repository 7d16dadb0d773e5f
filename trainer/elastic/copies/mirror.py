"""Mirror the copies of another node's ranks in this node's memory, so that its loss does not lose them.

Each rank of the other node has two files here. A new copy overwrites the older one. Only copies of the running
generation are taken, so the copies that it was restored from stay until it has one of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from trainer.contract.copy_record import FIRST_TENSOR_AT, NO_RECORD, RECORD_BYTES, CopyRecord, parse_record
from trainer.elastic.copies.copy_client import CopyClient
from trainer.elastic.health.oom import find_shortage
from trainer.elastic.records.files import say

_CHUNK = 1 << 22
MOST_BYTES_PER_S = 500e6  # beside training's own communication
_RETRY_S = 1.0
_CLOSE_S = 3.0  # longer than it takes to connect


@dataclass(frozen=True, kw_only=True)
class MirroredNode:
    """Whose copies to mirror: the agent's server, and the generation that trains."""

    url: str
    generation: int


class Mirror:
    """`follow` and `close` are for the agent's thread. `files` returns two files for each local rank of the source."""

    def __init__(self, files: Callable[[], Sequence[Sequence[int]]]) -> None:
        self._files = files
        self._source: MirroredNode | None = None
        self._client: CopyClient | None = None  # the thread's
        self._lacked_room = False
        self._changed, self._closing = threading.Event(), False
        self._buffer = bytearray(_CHUNK)
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def follow(self, source: MirroredNode | None) -> None:
        """Mirror this source from now on, or nothing."""
        self._source = source
        self._changed.set()
        if self._client is not None:
            self._client.interrupt()
        if source is not None and self._thread.ident is None:
            self._thread.start()

    def close(self) -> bool:
        """End the thread. False if it has not ended in time, and may still write to a file."""
        self._closing = True
        self.follow(None)
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing:
            self._changed.wait()
            self._changed.clear()
            while (source := self._source) is not None:
                try:
                    self._mirror(source)
                except OSError:  # the node is lost, or restarts: the rendezvous reports it
                    self._pause(source)
                except Exception as error:  # noqa: BLE001  # an edge: copies of the next generation may be mirrored again
                    say(f"another node's copies are not mirrored: {error!r}")
                    self._pause(source)

    def _pause(self, source: MirroredNode) -> None:
        self._changed.clear()
        if self._source is source:
            self._changed.wait(_RETRY_S)

    def _mirror(self, source: MirroredNode) -> None:
        with closing(CopyClient(source.url)) as self._client:
            while self._source is source:
                for own, files in zip(self._client.await_copies() or (), self._files(), strict=False):
                    for number, content in own:
                        record = parse_record(content)
                        if record is not None and record.name.term.generation == source.generation:
                            self._take(source, number, record, files)

    def _take(self, source: MirroredNode, number: int, record: CopyRecord, files: Sequence[int]) -> None:
        """Copy a copy, unless it is there, is replaced meanwhile, or would need too much memory."""
        assert self._client is not None
        content = record.render()
        kept = {file: os.pread(file, RECORD_BYTES, 0) for file in files}
        if content not in kept.values():
            target = min(files, key=lambda file: _age_of(kept[file]))
            if not self._is_there(source, number, content) or not self._reserve(target, record.end):
                return
            os.pwrite(target, NO_RECORD, 0)
            self._fill(number, target, record.end)
            if not self._is_there(source, number, content):
                return
            os.pwrite(target, content, 0)
        self._client.confirm(number, content)

    def _is_there(self, source: MirroredNode, number: int, content: bytes) -> bool:
        """Whether the source still has the copy of this record, and is still to be mirrored."""
        assert self._client is not None
        return self._client.read_record(number) == content and self._source is source

    def _reserve(self, target: int, size_bytes: int) -> bool:
        """Reserve memory, unless all files together would need more than half of what is free."""
        every = [file for own in self._files() for file in own]
        more = sum(max(0, size_bytes - os.fstat(file).st_size) for file in every)
        shortage = find_shortage(more)
        if shortage is not None:
            if not self._lacked_room:
                say(f"another node's copies are not mirrored: {shortage}")
            self._lacked_room = True
            return False
        os.posix_fallocate(target, 0, size_bytes)
        return True

    def _fill(self, number: int, target: int, end: int) -> None:
        """Read everything but the first page, no faster than allowed."""
        assert self._client is not None
        began, buffer = time.monotonic(), memoryview(self._buffer)
        for offset in range(FIRST_TENSOR_AT, end, _CHUNK):
            chunk = buffer[: min(_CHUNK, end - offset)]
            self._client.read_into(number, offset, chunk)
            os.pwrite(target, chunk, offset)
            time.sleep(max(0.0, began + offset / MOST_BYTES_PER_S - time.monotonic()))


def _age_of(content: bytes) -> tuple[int, int]:
    """Generation and step of the copy in a file: the lowest are the oldest."""
    record = parse_record(content)
    return (-1, -1) if record is None else (record.name.term.generation, record.name.step)
