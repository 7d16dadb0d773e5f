"""The files of a snapshot, without torch: checksums, commit, verification, listing, removal. Nothing is unpickled.

What differs between a folder and an object store is in stores.py.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from trainer.contract.layout import MANIFEST
from trainer.contract.manifest import (
    FILES,
    FileEntry,
    Manifest,
    SnapshotName,
    parse_manifest,
    parse_snapshot_name,
    render_manifest,
)
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot.remote import Location
from trainer.snapshot.stores import Found, directory_at

ALGORITHM = "xxh3-64"
_CHUNK_BYTES = 4 * 1024 * 1024
_PAUSE_S = 1.0  # before the second try to read a file
_READERS = 4  # xxhash and read(2) both release the interpreter lock


class Checksum:
    """The checksum of a file that is read or written sequentially."""

    def __init__(self) -> None:
        self._hasher, self._size_bytes = xxhash.xxh3_64(), 0

    def add(self, content: bytes) -> None:
        self._hasher.update(content)
        self._size_bytes += len(content)

    @property
    def entry(self) -> FileEntry:
        return FileEntry(size_bytes=self._size_bytes, checksum=f"{ALGORITHM}:{self._hasher.hexdigest()}")


def _always() -> bool:
    return True


def checksum_file(path: Location, should_continue: Callable[[], bool] = _always) -> FileEntry:
    """Size and checksum of a file. Raises OSError, and SnapshotError once `should_continue` returns False."""
    checksum = Checksum()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum.add(chunk)
            if not should_continue():
                raise SnapshotError(f"{path} was not read to its end: the job is stopping")
    return checksum.entry


def checksum_files(directory: Location, names: list[str]) -> dict[str, FileEntry]:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: checksum_file(directory / name), names), strict=True))


def files_of_rank(directory: Path, rank: int) -> list[str]:
    """The files that DCP's FileSystemWriter wrote for `rank`. Rank 0 also writes `.metadata`."""
    names = [path.name for path in directory.glob(f"__{rank}_*.distcp")]
    return sorted([*names, ".metadata"] if rank == 0 else names)


def claim(directory: Location) -> None:
    """Make the directory of a snapshot. Raises OSError, FileExistsError if another process writes this snapshot."""
    directory_at(directory).claim()


def commit(directory: Location, manifest: Manifest) -> None:
    """Commit: the manifest appears once everything else is durable. Raises OSError."""
    directory_at(directory).commit(json.dumps(render_manifest(manifest), indent=1))


def verify(directory: Location, should_continue: Callable[[], bool] = _always) -> Manifest:
    """Check a snapshot against its manifest while `should_continue` returns True.

    Raises DamagedSnapshot, or SnapshotError when it cannot be checked.
    """
    manifest = check_manifest(directory)
    verify_files(directory, manifest.files, should_continue)
    return manifest


def check_manifest(directory: Location) -> Manifest:
    """Read the manifest and check that it belongs to this directory, but no files. Raises what `verify` does."""
    manifest = read_manifest(directory)
    name = parse_snapshot_name(directory.name)
    if name is not None and name != SnapshotName(manifest.step, manifest.term):
        raise DamagedSnapshot(MANIFEST, f"belongs to {SnapshotName(manifest.step, manifest.term)}, in {directory}")
    if manifest.strategy != FILES and ".metadata" not in manifest.files:
        raise DamagedSnapshot(MANIFEST, f"lists no .metadata, in {directory}")
    return manifest


def verify_files(
    directory: Location, files: Mapping[str, FileEntry], should_continue: Callable[[], bool] = _always
) -> None:
    """Check the named files of a snapshot. Raises what `verify` does, for the first damaged file."""
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda item: _verify_file(directory / item[0], item[1], should_continue), files.items()))


def list_found(snapshots: Location) -> list[Found]:
    """All directories named like snapshots. Raises OSError. This can be slow in an object store."""
    return list(directory_at(snapshots).list_snapshots())


def list_committed(snapshots: Location) -> list[SnapshotName]:
    return [found.name for found in list_found(snapshots) if found.committed and not found.quarantined]


def list_named(snapshots: Location) -> list[SnapshotName]:
    """All that are not quarantined, committed or not. Raises OSError."""
    return [found.name for found in list_found(snapshots) if not found.quarantined]


def list_quarantined(snapshots: Location) -> list[SnapshotName]:
    return [found.name for found in list_found(snapshots) if found.quarantined]


def quarantine(directory: Location) -> Location:
    """Rename a damaged snapshot: no reader uses it, and its files remain for inspection."""
    return directory_at(directory).quarantine()


def remove(directory: Location) -> None:
    """Delete a snapshot, its manifest first: half a snapshot must not look committed. Repeating it is harmless."""
    (directory / MANIFEST).unlink(missing_ok=True)
    directory_at(directory).empty()


def read_manifest(directory: Location) -> Manifest:
    """Read the manifest without checking files. Raises SnapshotError, and DamagedSnapshot for an invalid manifest."""
    path = directory / MANIFEST
    try:
        document = json.loads(path.read_text())
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        return parse_manifest(document)
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotError(f"{path} is missing: no committed snapshot") from None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DamagedSnapshot(MANIFEST, f"is not a manifest ({error}), in {directory}") from error


def _verify_file(path: Location, expected: FileEntry, should_continue: Callable[[], bool]) -> None:
    if not expected.checksum.startswith(f"{ALGORITHM}:"):
        raise SnapshotError(f"{path} has a checksum {expected.checksum!r}, this version reads {ALGORITHM} only")
    try:
        found = _checksum_patiently(path, should_continue)
    except FileNotFoundError:
        raise DamagedSnapshot(path.name, f"is missing, in {path.parent}") from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedSnapshot(path.name, f"cannot be read ({error.strerror}), in {path.parent}") from error
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error
    if found.size_bytes != expected.size_bytes:
        sizes = f"has {found.size_bytes} bytes, but {expected.size_bytes} were committed"
        raise DamagedSnapshot(path.name, f"{sizes}, in {path.parent}")
    if found.checksum != expected.checksum:
        raise DamagedSnapshot(path.name, f"has changed since the commit (checksum differs), in {path.parent}")


def _checksum_patiently(path: Location, should_continue: Callable[[], bool]) -> FileEntry:
    """Like `checksum_file`, with one retry after an I/O error: a cable or a controller may fail briefly."""
    try:
        return checksum_file(path, should_continue)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    time.sleep(_PAUSE_S)
    return checksum_file(path, should_continue)
