"""Print the logs of a replica's workers, and some of the samples of what they use. A prefix on each line names them.

A cluster keeps and shows the output of a container, while the log files may be on a disk that only the container sees.
Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from trainer.contract import layout
from trainer.contract.printed import Writer, render_printed, render_printed_sample
from trainer.elastic.records.files import numbered, read_tail

_INTERVAL_S = 0.5
_MOST_BYTES = 1024 * 1024  # of one log at one look
_MOST_BEHIND = 16 * 1024 * 1024  # older output is skipped, with a note
_LONGEST_LINE = 16 * 1024
_FINAL_S = 10.0
_SAMPLE_EVERY_S = 15.0  # kubectl logs should show training, too
_NEWEST = 2  # generations to print: the previous one may still be ending


class Echo:
    """Prints from a daemon thread until it is closed. `write` takes whole lines."""

    def __init__(
        self,
        replica_dir: Path,
        write: Callable[[bytes], object],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica_dir, self._write, self._monotonic = replica_dir, write, monotonic
        self._sample = b""  # the last one that was printed
        self._sampled_s = float("-inf")
        self._offsets: dict[Writer, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Print what is left, including an incomplete last line. Give up after ten seconds."""
        self._closing.set()
        self._thread.join(_FINAL_S)

    def look(self, *, final: bool = False) -> bool:
        """Print what is new. Returns whether there may be more."""
        more = [self._print(writer, path, final=final) for writer, path in find_logs(self._replica_dir)]
        self._print_sample(final=final)
        return any(more)

    def _print_sample(self, *, final: bool) -> None:
        """Print the newest sample if it is new and the last one is old enough."""
        if not final and self._monotonic() < self._sampled_s + _SAMPLE_EVERY_S:
            return
        for incarnation, folder in numbered(self._replica_dir, "")[-1:]:
            complete, newline, _ = read_tail(folder / layout.RESOURCES, _LONGEST_LINE).rpartition("\n")
            sample = complete.rpartition("\n")[2].encode()
            if newline and sample.startswith(b"{") and sample != self._sample:
                self._write(render_printed_sample(incarnation, sample) + b"\n")
                self._sample, self._sampled_s = sample, self._monotonic()

    def _run(self) -> None:
        while not self._closing.wait(_INTERVAL_S):
            with suppress(OSError):  # a broken file system must not end the training
                self.look()
        deadline = time.monotonic() + _FINAL_S
        with suppress(OSError):
            while self.look(final=True) and time.monotonic() < deadline:
                pass

    def _print(self, writer: Writer, path: Path, *, final: bool) -> bool:
        size = path.stat().st_size
        offset = self._offsets.get(writer, 0)
        if offset > size:  # the log was truncated
            offset = 0
        if size - offset > _MOST_BEHIND:
            skipped = size - offset - _MOST_BYTES
            self._write(render_printed(writer, b"(%d bytes are skipped here)" % skipped) + b"\n")
            offset += skipped
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(_MOST_BYTES)
        whole = content if final and offset + len(content) >= size else _whole_lines(content)
        if whole:
            self._write(b"".join(render_printed(writer, line) + b"\n" for line in _cut(whole)))
        self._offsets[writer] = offset + len(whole)
        return bool(whole) and offset + len(whole) < size


def find_logs(replica_dir: Path) -> Iterator[tuple[Writer, Path]]:
    """The workers' logs of the newest incarnation's newest generations, oldest first."""
    for incarnation, incarnation_dir in numbered(replica_dir, "")[-1:]:
        for generation, folder in numbered(incarnation_dir, "g")[-_NEWEST:]:
            for local_rank, worker in numbered(folder, "local-"):
                log = worker / layout.WORKER_LOG
                if log.is_file():
                    yield Writer(incarnation, generation, local_rank), log


def _whole_lines(content: bytes) -> bytes:
    """The complete lines of a chunk. A chunk that is one long line is returned as it is."""
    end = content.rfind(b"\n") + 1
    return content if end == 0 and len(content) == _MOST_BYTES else content[:end]


def _cut(whole: bytes) -> Iterator[bytes]:
    for line in whole.removesuffix(b"\n").split(b"\n"):
        for start in range(0, max(1, len(line)), _LONGEST_LINE):
            yield line[start : start + _LONGEST_LINE]
