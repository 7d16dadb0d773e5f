"""Claim, commit, quarantine and find snapshots: by renames in a file system, by marks in an object store.

An object store renames nothing, and the first process that creates an object owns it. CLAIM marks a snapshot that is
being written, QUARANTINED a damaged one. The manifest marks the commit, as in a file system.
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
from trainer.snapshot.remote import Location, Remote

_CLAIM, _QUARANTINED = "CLAIM", "QUARANTINED"
_SUFFIX = ".quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An entry that is named like a snapshot."""

    name: SnapshotName
    committed: bool
    quarantined: bool


class SnapshotDirectory(Protocol):
    """A snapshot's directory, or for `list_snapshots` its parent. Every method raises OSError."""

    def claim(self) -> None:
        """Make the directory. Raises FileExistsError if another process writes this snapshot."""

    def commit(self, manifest: str) -> None:
        """Make the manifest appear atomically, once everything else is durable."""

    def quarantine(self) -> Location:
        """Rename the directory so that no reader finds it, and return its new location. Idempotent."""

    def empty(self) -> None:
        """Delete the content as far as possible."""

    def list_snapshots(self) -> Iterator[Found]:
        """The entries. Empty if the directory does not exist."""


def directory_at(place: Location) -> SnapshotDirectory:
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

    def quarantine(self) -> Path:
        target = self._directory.with_name(f"{self._directory.name}{_SUFFIX}")
        count = 1
        while target.exists():
            count += 1
            target = self._directory.with_name(f"{self._directory.name}{_SUFFIX}-{count}")
        return self._directory.rename(target)

    def empty(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def list_snapshots(self) -> Iterator[Found]:
        if not is_there(self._directory):
            return
        with os.scandir(self._directory) as entries:
            for entry in entries:
                plain, suffix, _ = entry.name.partition(_SUFFIX)
                name = parse_snapshot_name(plain)
                if name is not None and entry.is_dir():
                    committed = is_there(self._directory / entry.name / MANIFEST)
                    yield Found(name=name, committed=committed, quarantined=bool(suffix))


class _InStore:
    def __init__(self, directory: Remote) -> None:
        self._directory = directory

    def claim(self) -> None:
        (self._directory / _CLAIM).create()

    def commit(self, manifest: str) -> None:
        (self._directory / MANIFEST).create(manifest.encode())

    def quarantine(self) -> Remote:
        with suppress(FileExistsError):
            (self._directory / _QUARANTINED).create()
        return self._directory

    def empty(self) -> None:
        with suppress(OSError):
            self._directory.remove_tree()

    def list_snapshots(self) -> Iterator[Found]:
        """Needs one recursive listing."""
        found: dict[SnapshotName, set[str]] = {}
        for path in self._directory.names():
            folder, _, file = path.partition("/")
            name = parse_snapshot_name(folder)
            if name is not None:
                found.setdefault(name, set()).add(file)
        for name, files in found.items():
            yield Found(name=name, committed=MANIFEST in files, quarantined=_QUARANTINED in files)


def is_there(path: Path) -> bool:
    """Raises OSError if the file system does not answer. `Path.exists` returns False then from Python 3.14 on."""
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
