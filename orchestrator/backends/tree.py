"""Walk, hash and copy folders that somebody else may change at the same time.

Links are never followed, neither on the way to the folder nor in it. Files are read through the descriptors that were
checked, so a later rename has no effect.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.errors import LaunchRefused

LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})
MOST_BYTES, MOST_FILES = 256 * 1024 * 1024, 20_000
_DEEPEST = 100  # levels: each keeps a descriptor open
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Files and folders that are not copied, identified by inode and not by name."""

    private: frozenset[Identity] = frozenset()  # a tree that contains one is refused
    left_out: frozenset[Identity] = frozenset()


NO_EXCLUSIONS = Exclusions()


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, link or folder of a tree. `opened` is a file's descriptor, `link` a link's text."""

    name: str
    status: os.stat_result
    opened: int | None = None
    link: str | None = None

    @property
    def executable(self) -> bool:
        return self.opened is not None and bool(self.status.st_mode & 0o111)


def identify(paths: Collection[Path]) -> frozenset[Identity]:
    """Return the identities of the paths that exist. Hard links and bind mounts of one file share an identity."""
    found = set()
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def open_folder(path: Path) -> int:
    """Open the folder at an absolute path and return its descriptor. Raises OSError if any part is a link."""
    folder = os.open("/", _READ | os.O_DIRECTORY)
    for part in path.parts[1:]:
        try:
            inner = os.open(part, _READ | os.O_DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def walk(folder: int, exclusions: Exclusions = NO_EXCLUSIONS, *, within: str = "", depth: int = 0) -> Iterator[Entry]:
    """Yield the entries of an open folder, sorted, each folder before its content. A yielded file is open.

    Raises OSError, and LaunchRefused for a private file or folder.
    """
    if depth > _DEEPEST:
        raise LaunchRefused(f"run.workdir nests folders more than {_DEEPEST} levels deep")
    for name in sorted(set(os.listdir(folder)) - LEFT_OUT):
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        path = f"{within}/{name}" if within else name
        if stat.S_ISLNK(seen.st_mode):
            yield Entry(path, seen, link=os.readlink(name, dir_fd=folder))
        elif stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode):
            yield from _opened(folder, name, path, exclusions, depth=depth)
        # sockets, pipes and devices are not copied


def digest_tree(source: Path, exclusions: Exclusions = NO_EXCLUSIONS, *, into: int | None = None) -> str:
    """Hash names, modes and contents. With `into`, also copy the hashed content to that open folder.

    Raises OSError, and LaunchRefused for a folder that is too large or contains a private file.
    """
    digest, size, count = hashlib.sha256(), 0, 0
    folder = open_folder(source)
    try:
        for entry in walk(folder, exclusions):
            if entry.link is None and entry.opened is None:
                _make_folder(entry, into)
                continue
            name = entry.name.encode(errors="surrogateescape")
            content = _content(entry, into, most=MOST_BYTES - size)
            size, count = size + len(content), count + 1
            if size > MOST_BYTES or count > MOST_FILES:
                raise LaunchRefused(
                    f"run.workdir {source} contains more than {MOST_BYTES >> 20} MB or {MOST_FILES} files; "
                    "move it to storage that the nodes mount, and list that path in the cluster's shared_paths"
                )
            for part in (name, b"x" if entry.executable else b"-", content):
                digest.update(len(part).to_bytes(8, "big") + part)
    finally:
        os.close(folder)
    return digest.hexdigest()[:32]


def _opened(folder: int, name: str, path: str, exclusions: Exclusions, *, depth: int) -> Iterator[Entry]:
    opened = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(opened)
        identity = (status.st_dev, status.st_ino)
        if identity in exclusions.left_out:
            return
        if identity in exclusions.private:
            raise LaunchRefused(f"run.workdir contains a file of the service itself: {path}")
        if stat.S_ISREG(status.st_mode):
            yield Entry(path, status, opened=opened)
        elif stat.S_ISDIR(status.st_mode):
            yield Entry(path, status)
            yield from walk(opened, exclusions, within=path, depth=depth + 1)
    finally:
        os.close(opened)


def _content(entry: Entry, into: int | None, *, most: int) -> bytes:
    """Read a link's text, or a file's bytes (at most one more than `most`), and copy them to `into`."""
    if entry.opened is None:
        text = entry.link or ""
        if into is not None:
            os.symlink(text, entry.name, dir_fd=into)
        return text.encode(errors="surrogateescape")
    with os.fdopen(os.dup(entry.opened), "rb") as file:
        content = file.read(most + 1)
    if into is not None:
        _write_file(entry, content, into)
    return content


def _write_file(entry: Entry, content: bytes, into: int) -> None:
    """Keep the source's mode, except the setuid, setgid and sticky bits."""
    with os.fdopen(os.open(entry.name, _CREATE, 0o600, dir_fd=into), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), entry.status.st_mode & 0o777)


def _make_folder(entry: Entry, into: int | None) -> None:
    if into is not None:
        os.mkdir(entry.name, 0o700, dir_fd=into)
        os.chmod(entry.name, entry.status.st_mode & 0o777 | 0o700, dir_fd=into)
