"""How a snapshot is claimed, committed, set aside and found where it lies: by renames in a folder of a file system, and
by marks in an object store, which can rename nothing.

There, who creates an object of a name first has it: CLAIM says who writes the snapshot, QUARANTINED that it is set
aside, and the manifest, as everywhere, that it counts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.contract.layout import MANIFEST
from trainer.contract.manifest import SnapshotName, parse_snapshot_name
from trainer.snapshot.remote import Place, Remote

_CLAIM, _SET_ASIDE = "CLAIM", "QUARANTINED"
_SUFFIX = ".quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Whatever has a snapshot's name."""

    name: SnapshotName
    committed: bool
    set_aside: bool


class Spot(Protocol):
    """One directory: a snapshot's, or (for `survey`) the one that snapshots lie in. Every method raises OSError."""

    def claim(self) -> None:
        """Make it. Raises FileExistsError when another writes this snapshot."""

    def commit(self, manifest: str) -> None:
        """Let the manifest appear, whole, when all else is there to stay."""

    def set_aside(self) -> Place:
        """Where it lies from now on, out of every reader's way. Repeating it is harmless."""

    def empty(self) -> None:
        """Delete what is in it, as far as that goes."""

    def survey(self) -> Iterator[Found]:
        """What is there; nothing where it does not exist."""


def spot(place: Place) -> Spot:
    return _InStore(place) if isinstance(place, Remote) else _InFolder(place)


class _InFolder:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self) -> None:
        self._directory.mkdir()

    def commit(self, manifest: str) -> None:
        temporary = self._directory / f"{MANIFEST}.tmp"
        with temporary.open("w") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._directory)
        temporary.rename(self._directory / MANIFEST)
        sync_directory(self._directory)
        sync_directory(self._directory.parent)

    def set_aside(self) -> Path:
        target = self._directory.with_name(f"{self._directory.name}{_SUFFIX}")
        count = 1
        while target.exists():
            count += 1
            target = self._directory.with_name(f"{self._directory.name}{_SUFFIX}-{count}")
        return self._directory.rename(target)

    def empty(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def survey(self) -> Iterator[Found]:
        if not is_there(self._directory):
            return
        with os.scandir(self._directory) as entries:
            for entry in entries:
                plain, suffix, _ = entry.name.partition(_SUFFIX)
                name = parse_snapshot_name(plain)
                if name is not None and entry.is_dir():
                    committed = is_there(self._directory / entry.name / MANIFEST)
                    yield Found(name=name, committed=committed, set_aside=bool(suffix))


class _InStore:
    def __init__(self, directory: Remote) -> None:
        self._directory = directory

    def claim(self) -> None:
        (self._directory / _CLAIM).create()

    def commit(self, manifest: str) -> None:
        (self._directory / MANIFEST).create(manifest.encode())

    def set_aside(self) -> Remote:
        with suppress(FileExistsError):
            (self._directory / _SET_ASIDE).create()
        return self._directory

    def empty(self) -> None:
        with suppress(OSError):
            self._directory.remove_tree()

    def survey(self) -> Iterator[Found]:
        """By one listing of all that lies below."""
        found: dict[SnapshotName, set[str]] = {}
        for path in self._directory.names():
            folder, _, file = path.partition("/")
            name = parse_snapshot_name(folder)
            if name is not None:
                found.setdefault(name, set()).add(file)
        for name, files in found.items():
            yield Found(name=name, committed=MANIFEST in files, set_aside=_SET_ASIDE in files)


def is_there(path: Path) -> bool:
    """Raises OSError where that cannot be told, which `Path.exists` takes for no from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
