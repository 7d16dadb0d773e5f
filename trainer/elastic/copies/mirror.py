"""Mirror the copies of another node's ranks in this node's memory, so that its loss does not lose them.

For each rank there are two files, as on its own node. The older copy is overwritten, and only by one of the generation
that trains: until the new generation has a copy, those from which it was restored remain.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from trainer.contract.copy_record import FIRST_TENSOR_AT, NO_RECORD, RECORD_BYTES, CopyRecord, parse_record
from trainer.elastic.copies.copy_client import CopyClient
from trainer.elastic.health.oom import read_free_memory
from trainer.elastic.records.files import say

_CHUNK = 1 << 22
_MOST_BYTES_PER_S = 500e6  # beside training's own communication
_RETRY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """Whose copies to mirror: the agent's server, and the generation that trains."""

    url: str
    generation: int


class Mirror:
    """`follow` and `close` are for the agent's thread. `files` returns two files for each local rank of the source."""

    def __init__(self, files: Callable[[], Sequence[Sequence[int]]]) -> None:
        self._files = files
        self._source: Source | None = None
        self._client: CopyClient | None = None  # the thread's
        self._lacked_room = False
        self._changed, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def follow(self, source: Source | None) -> None:
        """Mirror this source from now on, or nothing."""
        self._source = source
        self._changed.set()
        if self._client is not None:
            self._client.interrupt()
        if source is not None and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread: it must not write to a file that is closed."""
        self._closing = True
        self.follow(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._changed.wait()
            self._changed.clear()
            source = self._source
            if source is not None:
                with closing(CopyClient(source.url)) as self._client:
                    self._mirror(source, self._client)

    def _mirror(self, source: Source, client: CopyClient) -> None:
        while self._source is source:
            try:
                for own, files in zip(client.await_copies() or (), self._files(), strict=False):
                    for number, content in own:
                        record = parse_record(content)
                        if record is not None and record.name.term.generation == source.generation:
                            self._take(client, number, record, files)
            except OSError:  # the node is lost, has no room, or begins again: the group is told by others
                self._changed.wait(_RETRY_S)

    def _take(self, client: CopyClient, number: int, record: CopyRecord, files: Sequence[int]) -> None:
        """Copy a copy, unless it is there, has been replaced meanwhile, or would need too much memory."""
        content = record.render()
        kept = {file: os.pread(file, RECORD_BYTES, 0) for file in files}
        if content not in kept.values():
            target = min(files, key=lambda file: _age_of(kept[file]))
            if not self._reserve(target, record.end):
                return
            os.pwrite(target, NO_RECORD, 0)
            _fill(client, number, target, record.end)
            if client.read_record(number) != content:
                return
            os.pwrite(target, content, 0)
        client.confirm(number, content)

    def _reserve(self, file: int, size_bytes: int) -> bool:
        """Reserve memory, unless that is more than half of what is free."""
        more, free = size_bytes - os.fstat(file).st_size, read_free_memory()
        if free is not None and more > free / 2:
            if not self._lacked_room:
                say(f"another node's copy is not mirrored: it needs {more / 1e9:.2f} GB, {free / 1e9:.2f} GB are free")
            self._lacked_room = True
            return False
        os.posix_fallocate(file, 0, size_bytes)
        return True


def _age_of(content: bytes) -> tuple[int, int]:
    """Generation and step of the copy in a file: the lowest are the oldest."""
    record = parse_record(content)
    return (-1, -1) if record is None else (record.name.term.generation, record.name.step)


def _fill(client: CopyClient, number: int, target: int, end: int) -> None:
    """Read everything but the first page, no faster than allowed."""
    began = time.monotonic()
    with mmap.mmap(target, end) as mapped, memoryview(mapped) as memory:
        for offset in range(FIRST_TENSOR_AT, end, _CHUNK):
            with memory[offset : min(offset + _CHUNK, end)] as chunk:
                client.read_into(number, offset, chunk)
            time.sleep(max(0.0, began + offset / _MOST_BYTES_PER_S - time.monotonic()))
