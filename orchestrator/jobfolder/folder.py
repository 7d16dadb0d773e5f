"""Folders that a job owns, opened by descriptors from the run directory downwards.

A job may create a link, a pipe, a device or a hard link anywhere. So each component of a path is opened relative to its
parent with O_NOFOLLOW, a file is checked before it is opened for reading, and a new file gets a random name before it
is renamed. The run directory itself belongs to the operator, so links in its path are followed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self

import structlog

from orchestrator.jobfolder.beneath import open_beneath

log = structlog.get_logger()

Status = os.stat_result
MAX_ENTRIES = 20_000  # per folder; further entries are ignored
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = _LOOK | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_DISPLACED = ".displaced-"  # prefix for entries that occupy a name that the service needs


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job, which may not exist."""

    root: Path
    name: str

    def open(self, *names: str) -> Folder:
        """Open the folder, or the one below it that the names lead to, for reading.

        The folder is absent if it does not exist or is no folder. Raises OSError.
        """
        with Folder.of(self.root) as root:
            return root.reach(self.name, *names)

    def read_on(self, names: Sequence[str], offset: int, *, limit: int) -> tuple[bytes, int] | None:
        """Read the file to which the names lead, like `Folder.read_on`."""
        with Folder.of(self.root) as root:
            return root.read_on((self.name, *names), offset, limit=limit)

    def make(self) -> Folder:
        """Open the folder for writing and create it if needed. Raises OSError."""
        with Folder.of(self.root, make=True) as root:
            return root.make(Path(self.name))


class Folder:
    """An open folder. Paths are relative to it. An absent folder is empty and cannot be written.

    Every method raises OSError if the disk fails, because a failed read does not prove that an entry is missing.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, path: Path, *, make: bool = False) -> Folder:
        """Open a folder of the operator, following links. If missing, it is created with `make`, else absent."""
        if make:
            path.mkdir(parents=True, exist_ok=True)
        return _open_folder(str(path), None, _FOLDER & ~os.O_NOFOLLOW)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor. Raises FileNotFoundError for an absent folder."""
        if self._descriptor is None:
            raise FileNotFoundError(errno.ENOENT, "the folder does not exist or is a link")
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def exists(self) -> bool:
        return self._descriptor is not None

    def within(self, path: Path) -> Folder:
        """Open the folder at a path. It is absent if it cannot be reached without a link."""
        return self.reach(*path.parts)

    def reach(self, *names: str) -> Folder:
        """Open the folder that the names lead to, like `within`."""
        if self._descriptor is None or len(names) < 2:
            return self._descend(names, _enter)
        try:
            descriptor = _jump(self._descriptor, names, _FOLDER)
        except OSError:
            return self._descend(names, _enter)
        if descriptor is not None:
            with _closed_on_error(descriptor):
                _permit(descriptor, stat.S_IRWXU)
        return Folder(descriptor)

    def make(self, path: Path) -> Folder:
        """Open the folder at a path and create it if needed. Anything else at the path is renamed."""
        return self._descend(path.parts, _make)

    def names(self, path: Path | None = None, *, limit: int = MAX_ENTRIES) -> list[str]:
        """Return at most `limit` names in the folder at a path, unordered."""
        with self._listed(path) as entries:
            return [entry.name for entry in islice(entries, limit)]

    def folders(self, path: Path | None = None, *, limit: int = MAX_ENTRIES) -> list[str]:
        """Return the names of the subfolders among the first `limit` entries."""
        with self._listed(path) as entries:
            return [entry.name for entry in islice(entries, limit) if entry.is_dir(follow_symlinks=False)]

    def status(self, path: Path) -> Status | None:
        """Return an entry's own status. None if it does not exist or cannot be reached without a link."""
        with self._above(path) as folder:
            return _status(folder._descriptor, path.name)

    def open(self, path: Path) -> BinaryIO | None:
        """Open a regular file for reading. None if it does not exist or is anything else, which is never opened."""
        with self._above(path) as folder:
            return None if folder._descriptor is None else _open_file(folder._descriptor, path.name)

    def read(self, path: Path, *, limit: int) -> bytes | None:
        """Read at most `limit` bytes of a regular file. None if there is none."""
        file = self.open(path)
        if file is None:
            return None
        with file:
            return file.read(limit)

    def read_on(self, names: Sequence[str], offset: int, *, limit: int) -> tuple[bytes, int] | None:
        """Read at most `limit` bytes of a regular file from `offset` on, or from the start of a shorter file.

        Returns the bytes and the size of the file. None if the names lead to no regular file.
        """
        file = self._open_below(names)
        if file is None:
            return None
        try:
            size = os.fstat(file).st_size
            start = offset if offset <= size else 0
            return os.pread(file, min(limit, size - start), start), size
        finally:
            os.close(file)

    def last_lines(self, path: Path, *, size: int) -> list[str]:
        """Return the lines in the last `size` bytes of a regular file, or an empty list."""
        file = self.open(path)
        if file is None:
            return []
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace").strip().splitlines()

    def write(self, path: Path, content: bytes, *, private: bool = False, sync: bool = True) -> None:
        """Replace a file atomically. Only the owner can read a `private` file."""
        with self.make(path.parent) as folder, folder._draft(content, private=private, sync=sync) as draft:
            folder._move(draft, path.name)

    def create(self, path: Path, content: bytes) -> bool:
        """Create a new file atomically. Returns False if a file has that name."""
        with self.make(path.parent) as folder, folder._draft(content, private=False, sync=False) as draft:
            here = folder.fileno()
            found = _status(here, path.name)
            if found is not None and not stat.S_ISREG(found.st_mode):
                _set_aside(here, path.name)
            try:
                os.link(draft, path.name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
            except FileExistsError:
                return False
            return True

    def touch(self, path: Path) -> None:
        """Create an empty file unless one exists. Anything else with that name is renamed."""
        with self.make(path.parent) as folder:
            found = _status(folder._descriptor, path.name)
            if found is None or not _is_plain_file(
                found
            ):  # an existing file is not opened, because it may be read-only
                os.close(folder._open_own(path.name, os.O_WRONLY))

    def append(self, path: Path, *, lock: bool = False) -> BinaryIO:
        """Open one of our files to append, or to lock. Anything else with that name is renamed."""
        with self.make(path.parent) as folder:
            flags = os.O_RDWR if lock else os.O_WRONLY | os.O_APPEND
            return os.fdopen(folder._open_own(path.name, flags), "rb+" if lock else "ab", buffering=0)

    def truncate(self, path: Path, size: int) -> None:
        """Cut one of our files if it is longer."""
        found = self.status(path)
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_size > size:
            with self.append(path) as file:
                os.ftruncate(file.fileno(), size)

    def use(self, path: Path) -> bool:
        """Set a folder's time to now. Returns False if there is no folder."""
        with self.within(path) as folder:
            if not folder.exists:
                return False
        with self.within(path.parent) as above:
            os.utime(path.name, dir_fd=above.fileno(), follow_symlinks=False)
        return True

    def remove(self, path: Path) -> None:
        """Delete a file or a link, if it exists."""
        with self.within(path.parent) as folder, suppress(FileNotFoundError):
            if folder.exists:
                os.unlink(path.name, dir_fd=folder.fileno())

    def rename(self, path: Path, name: str) -> None:
        """Rename a file within its folder. Replaces a file with that name."""
        with self.within(path.parent) as folder:
            folder._move(path.name, name)

    def move_to(self, path: Path, target: Folder, name: str) -> bool:
        """Move a file, a folder or a link itself to another open folder. Returns whether it existed."""
        with self.within(path.parent) as folder:
            if not folder.exists:
                return False
            try:
                with suppress(PermissionError):
                    os.rename(path.name, name, src_dir_fd=folder.fileno(), dst_dir_fd=target.fileno())
                    return True
                # Without write permission a folder cannot be moved. Opening it restores the permission.
                folder.within(Path(path.name)).close()
                os.rename(path.name, name, src_dir_fd=folder.fileno(), dst_dir_fd=target.fileno())
            except FileNotFoundError:
                return False
            return True

    def _above(self, path: Path) -> AbstractContextManager[Folder]:
        """Open the folder that contains the entry at a path. If the path is only a name, this is the folder itself."""
        return nullcontext(self) if len(path.parts) == 1 else self.within(path.parent)

    def _open_below(self, names: Sequence[str]) -> int | None:
        """Open a regular file for reading, if possible without opening the folders on the way."""
        if self._descriptor is None:
            return None
        try:
            found = _jump(self._descriptor, names, _LOOK)
        except OSError:
            with self.reach(*names[:-1]) as folder:
                return None if folder._descriptor is None else _open_descriptor(folder._descriptor, names[-1])
        return None if found is None else _open_found(found)

    def _descend(self, parts: tuple[str, ...], step: Callable[[int, str], int | None]) -> Folder:
        """Open one component after the other. The new Folder owns the last descriptor; the others are closed."""
        descriptor = None if self._descriptor is None else os.dup(self._descriptor)
        for name in parts:
            if descriptor is None:
                break
            above, descriptor = descriptor, None
            try:
                descriptor = step(above, require_name(name))
            finally:
                os.close(above)
        return Folder(descriptor)

    @contextmanager
    def _listed(self, path: Path | None) -> Iterator[Iterator[os.DirEntry[str]]]:
        with self.within(path or Path()) as folder:
            if folder._descriptor is None:
                yield iter(())
                return
            reading = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder._descriptor)
            try:
                with os.scandir(reading) as entries:
                    yield entries
            finally:
                os.close(reading)

    @contextmanager
    def _draft(self, content: bytes, *, private: bool, sync: bool) -> Iterator[str]:
        """Write a file with a random name. The name is removed at the end of the block."""
        name = f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(name, _NEW, 0o600 if private else 0o666, dir_fd=self.fileno())
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            yield name
        finally:
            with suppress(OSError):  # usually renamed by then
                os.unlink(name, dir_fd=self.fileno())

    def _move(self, name: str, target: str) -> None:
        here = self.fileno()
        try:
            os.rename(name, target, src_dir_fd=here, dst_dir_fd=here)
        except IsADirectoryError:
            _set_aside(here, target)
            os.rename(name, target, src_dir_fd=here, dst_dir_fd=here)

    def _open_own(self, name: str, flags: int) -> int:
        """Open or create a regular file that has no other name. Returns its descriptor."""
        here, flags = self.fileno(), flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        found = _status(here, name)
        if found is not None and not _is_plain_file(found):
            _set_aside(here, name)
        try:
            descriptor = os.open(name, flags, 0o666, dir_fd=here)
        except PermissionError:
            _set_aside(here, name)
            descriptor = os.open(name, flags, 0o666, dir_fd=here)
        with _closed_on_error(descriptor):
            opened, found = os.fstat(descriptor), _status(here, name)
            # Check the name, not the open file: that may have lost this name and kept one link elsewhere.
            if found is None or not _is_plain_file(found) or not os.path.samestat(found, opened):
                raise FileExistsError(errno.EEXIST, "another process replaced it at the same time", name)
        return descriptor


def _jump(above: int, names: Sequence[str], flags: int) -> int | None:
    """Open an entry in one system call. None if it does not exist or cannot be reached without a link.

    Raises OSError for anything else. Then one folder's permissions may be missing, or the kernel has no such call.
    """
    for name in names:
        require_name(name)
    try:
        return open_beneath(above, names, flags)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


def _enter(above: int, name: str) -> int | None:
    return _open_folder(name, above, _FOLDER)._descriptor


def _make(above: int, name: str) -> int | None:
    found = _enter(above, name)
    if found is not None:
        return found
    if _status(above, name) is not None:
        _set_aside(above, name)
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    found = _enter(above, name)
    if found is None:
        raise FileExistsError(errno.EEXIST, "another process keeps replacing it with something else", name)
    return found


def _open_folder(name: str, above: int | None, flags: int) -> Folder:
    try:
        descriptor = os.open(name, flags, dir_fd=above)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return Folder(None)
        raise
    if above is not None:
        with _closed_on_error(descriptor):
            _permit(descriptor, stat.S_IRWXU)
    return Folder(descriptor)


@contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


def _permit(descriptor: int, wanted: int) -> None:
    """Restore the owner's permissions, which a job that runs as the service's user may have removed."""
    if os.geteuid() == 0:
        return  # needs none
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and status.st_mode & wanted != wanted:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(status.st_mode) | wanted)  # noqa: PTH101  # a descriptor


def _status(above: int | None, name: str) -> os.stat_result | None:
    if above is None:
        return None
    try:
        return os.stat(require_name(name), dir_fd=above, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def _open_file(above: int, name: str) -> BinaryIO | None:
    descriptor = _open_descriptor(above, name)
    return None if descriptor is None else os.fdopen(descriptor, "rb")


def _open_descriptor(above: int, name: str) -> int | None:
    try:
        found = os.open(require_name(name), _LOOK, dir_fd=above)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    return _open_found(found)


def _open_found(found: int) -> int | None:
    """Check an O_PATH descriptor before opening the file, since opening a device or pipe can have effects."""
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        _permit(found, stat.S_IRUSR)
        # O_NONBLOCK: a process with a lease on the file (fcntl(2), F_SETLEASE) could block us for 45 seconds.
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def _is_plain_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _set_aside(above: int, name: str) -> None:
    """Rename an entry that occupies a name the service needs. It belongs to the job, so it is kept."""
    aside = f"{_DISPLACED}{secrets.token_hex(8)}"
    log.warning("renamed an entry in a job's folder", name=name, now=aside)
    with suppress(FileNotFoundError):
        os.rename(name, aside, src_dir_fd=above, dst_dir_fd=above)


def status_of(file: BinaryIO) -> Status:
    """Return the status of an open file, even if its name now refers to another. Raises OSError."""
    return os.fstat(file.fileno())


def require_name(name: str) -> str:
    """Return the name if it names one entry, not a path. Raises OSError."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "is not a name of a file or folder", name)
    return name
