"""Read and write the documents and journals of the run directory. A crash never leaves a half-written document."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from trainer.contract.progress import MAX_REPORTED_LINES

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def say(text: str) -> None:
    """Print to the agent's own log. A full disk is ignored."""
    with suppress(OSError):
        print(f"elasticrun: {text}", file=sys.stderr, flush=True)


def open_to_read(path: Path) -> BinaryIO:
    """Open a file that a worker may have replaced. A pipe without a writer reads as empty instead of blocking."""
    return open(path, "rb", opener=lambda name, _: os.open(name, _READ))  # Path.open has no opener


def read_small(path: Path, limit_bytes: int) -> str | None:
    """The text of a file. None for what is larger or no regular file, such as a link. Never waits. Raises OSError."""
    try:
        descriptor = os.open(path, _READ | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit_bytes + 1)
    finally:
        os.close(descriptor)
    return content.decode(errors="replace") if len(content) <= limit_bytes else None


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Replace `path` by the JSON document atomically and durably."""
    temporary = write_temporary(path, json.dumps(document, indent=1).encode() + b"\n")
    temporary.replace(path)


def write_temporary(path: Path, content: bytes) -> Path:
    """Write `content` durably to a new file beside `path`, and return the new file's path."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)  # the disk may be full
        raise
    return temporary


def read_document(path: Path) -> dict[str, object] | None:
    """The JSON object in `path`. None if the file is absent or is not an object."""
    try:
        with open_to_read(path) as file:
            document = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def append_line(path: Path, document: Mapping[str, object]) -> None:
    """Append one JSON line by one write. If a crash has torn the last line, end that line first."""
    line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


class Lines(NamedTuple):
    """Complete lines of a journal, and the bytes that were read, from `start` to `end`."""

    texts: list[str]
    start: int
    end: int
    more: bool = False  # a limit ended the reading


def read_lines(path: Path, offset: int, limit_bytes: int) -> Lines:
    """Read complete lines of at most `limit_bytes`, from `offset` on or, if the file is shorter, from its start.

    A line longer than the limit is skipped: agents and the trainer write none. A line that is not UTF-8 becomes
    question marks of the same length, so that offsets stay right.
    """
    try:
        with open_to_read(path) as file:
            start = offset if offset <= file.seek(0, os.SEEK_END) else 0
            file.seek(start)
            chunk = file.read(limit_bytes)
    except OSError:
        return Lines([], offset, offset)
    more = len(chunk) == limit_bytes
    whole, newline, _torn = chunk.rpartition(b"\n")
    if not newline:
        return Lines([], start, start + len(chunk) if more else start, more)
    lines = whole.split(b"\n", MAX_REPORTED_LINES)
    more = more or len(lines) > MAX_REPORTED_LINES
    del lines[MAX_REPORTED_LINES:]
    return Lines([_decode_line(line) for line in lines], start, start + len(lines) + sum(map(len, lines)), more)


def _decode_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:  # the job wrote it: agents and the trainer write JSON
        return "?" * len(line)


def read_text(path: Path) -> str:
    """A text file. Empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_tail(path: Path, limit_bytes: int) -> str:
    """The last `limit_bytes` of a text file. Empty if the file is absent."""
    try:
        with open_to_read(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """The entries of `folder` named `prefix` and a number, in order. Empty if the folder cannot be read."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]  # noqa: PTH208  # only names are needed
    except OSError:
        return []
    numbers = ((name.removeprefix(prefix), folder / name) for name in names)
    return sorted((int(number), path) for number, path in numbers if number.isdecimal())
