"""Read all lines of the selected logs, oldest generation first, in pieces of little memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from itertools import groupby

from orchestrator.logs.log_files import BLOCK_BYTES, open_log, read_lines
from orchestrator.logs.reader import LogRequest, Selection, last_written, matches


def read_whole(selection: Selection, request: LogRequest) -> Iterator[bytes]:
    """Yield pieces of whole lines. A log that is still written ends where it ended when its turn came."""
    piece = bytearray()
    for line in _read_lines(selection, request):
        piece += f"{line}\n".encode(errors="replace")
        if len(piece) >= BLOCK_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _read_lines(selection: Selection, request: LogRequest) -> Iterator[str]:
    wanted, hide = matches(request), selection.mask.hide
    for _, group in groupby(sorted(selection.sources), key=lambda source: (source.generation, source.incarnation)):
        for source in sorted(group, key=lambda source: last_written(selection.folder, source)):
            label = source.label(selection.attempt) if selection.prefixed else ""
            for path in (source.older, source.path):
                file = open_log(selection.folder, path)
                if file is None:
                    continue
                with file, contextlib.suppress(OSError):  # a failing disk must not affect other logs
                    lines = map(hide, read_lines(file, 0, file.seek(0, io.SEEK_END)))
                    yield from (label + line for line in lines if wanted(line))
