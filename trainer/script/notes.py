"""How the ranks of a user's own script begin a generation and commit a snapshot together: by notes in files.

A script may ask for its snapshot before it has a process group, and may never have one. All it needs is the folder of
snapshots. Rank 0 chooses a snapshot by lineage.py and publishes the result for the other ranks. In a slot, each rank
leaves a note when its files are written. Rank 0 commits when all notes are there. The other ranks leave when they see
the commit, or that the slot was removed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainer import snapshot
from trainer.contract import layout
from trainer.contract.manifest import FileEntry
from trainer.errors import SnapshotError

_NOTE = ".rank-"
_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.2
_PATIENCE_S = 1200.0  # as long as the trainer waits in a collective
_LONGEST_ERROR = 300  # characters: it becomes an event's sentence
_NOTE_BYTES = 4096  # enough for the note of an error, with up to 12 bytes a character in JSON

T = TypeVar("T")


class LostPeer(RuntimeError):
    """A worker ended while this one waited for it. The message is known to `is_end_of_group`."""


def joins_another_group() -> bool:
    """Whether the agent orders this process to join another group."""
    survivor = sys.modules.get("trainer.script.survivor")
    current = None if survivor is None else survivor.Survivor.current
    return current is not None and bool(current.must_leave_group)


def publish(path: Path, document: dict[str, object]) -> None:
    """Write a document atomically."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text(json.dumps(document))
    temporary.rename(path)


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """Call `look` until it returns something, for at most twenty minutes. Raises SnapshotError.

    Raises LostPeer if the rank that it waits for may be lost, and this process joins another group.
    """
    deadline, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_LOOK_S
    while (found := look()) is None:
        if joins_another_group():
            raise LostPeer(f"Connection closed by peer: a worker ended while this one waited for {what}")
        if time.monotonic() > deadline:
            raise SnapshotError(f"waited {_PATIENCE_S:g} s for {what}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_LOOK_S)
    return found


def read(path: Path) -> dict[str, object] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def reserve_note(slot: Path, rank: int) -> None:
    """Reserve space for a note that this rank failed: the others must not wait for it when the disk is full."""
    with suppress(OSError):
        (slot / f"{_NOTE}{rank}").write_bytes(b" " * _NOTE_BYTES)


def leave_note(slot: Path, rank: int, own: Iterable[str]) -> None:
    """Publish that this rank's files are written, with the checksums of `own`. Raises OSError."""
    entries = snapshot.checksum_files(slot, sorted(own))
    files = {name: [entry.size_bytes, entry.checksum] for name, entry in entries.items()}
    publish(slot / f"{_NOTE}{rank}", {"files": files})


def leave_failure(slot: Path, rank: int, error: BaseException) -> None:
    """Publish that this rank failed, in the space that it reserved. Does nothing without that space."""
    first_line = (str(error).strip().splitlines() or ["no message"])[0][:_LONGEST_ERROR]
    note = json.dumps({"error": f"rank {rank}: {type(error).__name__}: {first_line}"})
    with suppress(OSError), (slot / f"{_NOTE}{rank}").open("r+b") as file:
        file.write(note.encode().ljust(_NOTE_BYTES))


def await_notes(slot: Path, ranks: Iterable[int]) -> list[dict[str, object]]:
    """The notes of these ranks, once all are there. Then these ranks no longer write. Raises SnapshotError."""
    paths = {rank: slot / f"{_NOTE}{rank}" for rank in ranks}
    return [wait_for(partial(read, path), f"rank {rank} in {slot}") for rank, path in paths.items()]


def gather(slot: Path, world_size: int) -> dict[str, FileEntry]:
    """On rank 0, wait for all notes, remove them, sync every file of the slot to disk, and return the files.

    Raises SnapshotError if a rank failed or left no note, OSError if something cannot be read.
    """
    files: dict[str, FileEntry] = {}
    for note in await_notes(slot, range(world_size)):
        if "error" in note:
            raise SnapshotError(str(note["error"]))
        listed = note.get("files")
        for name, (size_bytes, checksum) in (listed if isinstance(listed, dict) else {}).items():
            files[name] = FileEntry(size_bytes=size_bytes, checksum=checksum)
    for note_path in slot.glob(f"{_NOTE}*"):
        note_path.unlink()
    names = sorted(str(path.relative_to(slot)) for path in slot.rglob("*") if path.is_file())
    for name in names:
        _sync_file(slot / name)
    return {**files, **snapshot.checksum_files(slot, [name for name in names if name not in files])}


def wait_until_closed(slot: Path) -> bool:
    """On the other ranks, wait for rank 0, and return whether it committed the slot."""

    def look() -> bool | None:
        if snapshot.is_there(slot / layout.MANIFEST):
            return True
        return None if snapshot.is_there(slot) else False

    return wait_for(look, f"the commit of {slot}")


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
