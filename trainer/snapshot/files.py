"""The files of a snapshot, without torch: checksums, commit, verification, listing, removal. Nothing is unpickled."""

from __future__ import annotations

import errno
import json
import os
import shutil
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

ALGORITHM = "xxh3-64"
_CHUNK_BYTES = 4 * 1024 * 1024
_READERS = 4  # xxhash and read(2) both release the interpreter lock


def checksum_file(path: Path) -> FileEntry:
    """Size and checksum of a file, read in pieces. Raises OSError."""
    hasher, size_bytes = xxhash.xxh3_64(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            size_bytes += len(chunk)
    return FileEntry(size_bytes=size_bytes, checksum=f"{ALGORITHM}:{hasher.hexdigest()}")


def checksum_files(directory: Path, names: list[str]) -> dict[str, FileEntry]:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: checksum_file(directory / name), names), strict=True))


def files_of_rank(directory: Path, rank: int) -> list[str]:
    """The names that DCP's FileSystemWriter gives to what `rank` wrote; rank 0 also writes `.metadata`."""
    names = [path.name for path in directory.glob(f"__{rank}_*.distcp")]
    return sorted([*names, ".metadata"] if rank == 0 else names)


def commit(directory: Path, manifest: Manifest) -> None:
    """Make the snapshot count: its manifest is renamed in when all else is on disk. Raises OSError."""
    temporary = directory / f"{MANIFEST}.tmp"
    with temporary.open("w") as file:
        json.dump(render_manifest(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)
    temporary.rename(directory / MANIFEST)
    sync_directory(directory)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(directory: Path) -> Manifest:
    """Check a snapshot against its manifest. Raises DamagedSnapshot, or SnapshotError when it cannot be checked."""
    manifest = read_manifest(directory)
    name = parse_snapshot_name(directory.name)
    if name is not None and name != SnapshotName(manifest.step, manifest.term):
        raise DamagedSnapshot(MANIFEST, f"is that of {SnapshotName(manifest.step, manifest.term)}, in {directory}")
    if manifest.strategy != FILES and ".metadata" not in manifest.files:
        raise DamagedSnapshot(MANIFEST, f"lists no .metadata, in {directory}")
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda item: _verify_file(directory / item[0], item[1]), manifest.files.items()))
    return manifest


def list_committed(snapshots: Path) -> list[SnapshotName]:
    return [name for name in list_named(snapshots) if (snapshots / str(name) / MANIFEST).exists()]


def list_named(snapshots: Path) -> list[SnapshotName]:
    """Every directory with a snapshot's name, committed or not. Raises OSError."""
    if not snapshots.exists():
        return []
    names = (parse_snapshot_name(path.name) for path in snapshots.iterdir() if path.is_dir())
    return [name for name in names if name is not None]


def list_quarantined(snapshots: Path) -> list[SnapshotName]:
    if not snapshots.exists():
        return []
    names = (parse_snapshot_name(path.name.partition(".")[0]) for path in snapshots.glob("*.quarantined*"))
    return [name for name in names if name is not None]


def quarantine(directory: Path) -> Path:
    """Rename a damaged snapshot so that no reader takes it for one; it is kept for whoever looks into the damage."""
    target = directory.with_name(f"{directory.name}.quarantined")
    count = 1
    while target.exists():
        count += 1
        target = directory.with_name(f"{directory.name}.quarantined-{count}")
    return directory.rename(target)


def remove(directory: Path) -> None:
    """Delete a snapshot, its manifest first: half a snapshot must not look committed. Repeating it is harmless."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def read_manifest(directory: Path) -> Manifest:
    """What was committed, unchecked. Raises SnapshotError, DamagedSnapshot for a manifest that is none."""
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
        raise DamagedSnapshot(MANIFEST, f"is no manifest ({error}), in {directory}") from error


def _verify_file(path: Path, expected: FileEntry) -> None:
    if not expected.checksum.startswith(f"{ALGORITHM}:"):
        raise SnapshotError(f"{path} has a checksum {expected.checksum!r}, this version reads {ALGORITHM} only")
    try:
        found = checksum_file(path)
    except FileNotFoundError:
        raise DamagedSnapshot(path.name, f"is missing, in {path.parent}") from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedSnapshot(path.name, f"cannot be read ({error.strerror}), in {path.parent}") from error
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error
    if found.size_bytes != expected.size_bytes:
        sizes = f"has {found.size_bytes} bytes, committed were {expected.size_bytes}"
        raise DamagedSnapshot(path.name, f"{sizes}, in {path.parent}")
    if found.checksum != expected.checksum:
        raise DamagedSnapshot(path.name, f"has changed since the commit (checksum differs), in {path.parent}")
