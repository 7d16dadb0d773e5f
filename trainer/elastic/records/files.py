"""Reading and writing the run directory's documents and journals. Every write survives a crash in its middle."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def say(text: str) -> None:
    """Tell whoever reads the agent's own output. Its log may lie on a full disk: that must end nothing."""
    with suppress(OSError):
        print(f"elasticrun: {text}", file=sys.stderr, flush=True)


def open_to_read(path: Path) -> BinaryIO:
    """Open what a worker may have replaced: a pipe without a writer reads as empty and does not block for ever."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Replace `path` by the JSON document: temporary file, fsync, rename. A reader sees the old one or the new one."""
    temporary = write_temporary(path, json.dumps(document, indent=1).encode() + b"\n")
    temporary.replace(path)


def write_temporary(path: Path, content: bytes) -> Path:
    """Write `content`, flushed to the disk, to a new file beside `path` and return its path."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk needs no litter
        raise
    return temporary


def read_document(path: Path) -> dict[str, object] | None:
    """The JSON object in `path`; None when it is absent or not an object."""
    try:
        with open_to_read(path) as file:
            document = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def append_line(path: Path, document: Mapping[str, object]) -> None:
    """Append one JSON line by one write, after the end of a line that a crash may have torn."""
    line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def read_lines(path: Path, offset: int, limit_bytes: int) -> tuple[list[str], int]:
    """The whole lines of a journal from byte `offset` on, and the offset behind them; at most `limit_bytes`.

    A line longer than the limit is skipped: no writer of ours makes one.
    """
    try:
        with open_to_read(path) as file:
            file.seek(offset)
            chunk = file.read(limit_bytes)
    except OSError:
        return [], offset
    end = chunk.rfind(b"\n") + 1
    if end == 0:
        return [], offset + (len(chunk) if len(chunk) == limit_bytes else 0)
    lines = chunk[:end].decode(errors="replace").split("\n")
    return [line for line in lines if line.strip()], offset + end


def read_tail(path: Path, limit_bytes: int) -> str:
    """The last `limit_bytes` of a text file; empty when it is absent."""
    try:
        with open_to_read(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """The folders in `folder` that are called `prefix` and a number, in its order; none where it cannot be read."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]  # noqa: PTH208  # names alone
    except OSError:
        return []
    numbers = ((name.removeprefix(prefix), folder / name) for name in names)
    return sorted((int(number), path) for number, path in numbers if number.isdecimal())
