"""Check whether this node can run workers: space on the run directory's disk, and memory. Standard library only.

A restart takes a tenth of a second. Without this check, a disk that is full for a minute would use up all of a job's
restarts.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.records.files import read_text, say

_PROBE_BYTES = 1024 * 1024
_QUOTED_PATH, _MOST_PATHS = re.compile(r"""['"](/[^'"\n]{1,1000})['"]"""), 50
_OWN_KINDS = {"ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"}
_LEAST_MEMORY_SHARE = 0.01
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LOOK_EVERY_S = 0.5
PATIENCE_S = 600.0


class NodeUnfit(Exception):
    """The node did not recover in time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def find_full_disk(folder: Path) -> str | None:
    """Why a megabyte cannot be written to the folder, if its disk is full or read-only. None otherwise.

    No fsync is needed: a full local file system fails the write, a network file system fails the close.
    """
    while not os.access(folder, os.F_OK):  # a full disk may have prevented its creation
        folder = folder.parent
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}" if error.errno in _FULL else None
    finally:
        with suppress(OSError):
            probe.unlink()
    return None


def find_full_place(output: str, folders: Sequence[Path]) -> Path | None:
    """The first path in quotes in this output, else of these folders, else of the machine's own file systems (other
    ones may hang) that has no space left.

    A path that does not exist stands for its nearest folder that does. Quotas are not seen.
    """
    for path in (*map(Path, _QUOTED_PATH.findall(output)[-_MOST_PATHS:]), *folders, *_own_file_systems()):
        with suppress(OSError):
            while not path.exists():
                path = path.parent
            status = os.statvfs(path)
            if status.f_bavail * status.f_frsize < _PROBE_BYTES:
                return path
    return None


def _own_file_systems() -> list[Path]:
    """Where local file systems are mounted for writing, by proc(5)."""
    mounts = [line.split() for line in read_text(Path("/proc/self/mounts")).splitlines()]
    return [
        Path(place.replace("\\040", " "))
        for _, place, kind, options, *_ in mounts
        if kind in _OWN_KINDS and "rw" in options.split(",")
    ]


def find_memory_shortage(meminfo: str) -> str | None:
    """A sentence if less than 1% of the memory is available, by the text of /proc/meminfo. None otherwise."""
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    try:
        total_kb, free_kb = int(fields["MemTotal"][0]), int(fields["MemAvailable"][0])
    except (KeyError, ValueError, IndexError):
        return None
    if free_kb >= _LEAST_MEMORY_SHARE * total_kb:
        return None
    return f"only {free_kb // 1024} of {total_kb // 1024} MB of memory are available on this node"


def await_fitness(folder: Path, patience_s: float = PATIENCE_S) -> tuple[str, float] | None:
    """Wait until the node can run workers. Returns the obstacle and the seconds waited, or None if there was none.

    Raises NodeUnfit after `patience_s`.
    """
    began, first = time.monotonic(), None
    while True:
        full = find_full_disk(folder)
        obstacle = full or find_memory_shortage(read_text(Path("/proc/meminfo")))
        waited_s = time.monotonic() - began
        if obstacle is None:
            return None if first is None else (first, waited_s)
        if waited_s > patience_s:
            kind = FailureKind.STORAGE if full else FailureKind.NODE
            raise NodeUnfit(Failure(kind=kind, message=f"{obstacle}, for {waited_s:.0f} s"))
        if first is None:
            say(f"waiting: {obstacle}")
            first = obstacle
        time.sleep(_LOOK_EVERY_S)
