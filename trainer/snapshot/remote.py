"""A folder in an object store, by fsspec, with the part of pathlib's interface that snapshots need.

An object store has no directories and no renames. An object appears as a whole when it is closed. Of several writers of
one name, `create` lets one win if the store has conditional puts (S3, Google Cloud Storage). fsspec is imported with
the first URL.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer.contract.location import is_url
from trainer.errors import SnapshotError

_LOCAL = "file://"
_CHUNK_BYTES = 16 * 1024 * 1024  # of one request of a sequential read


class Remote:
    """Has `/`, `name`, `parent` and `str` like a path. Every failure is an OSError with a `strerror`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"Remote({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return Remote, (self._url,)

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        return Remote(self._url.rpartition("/")[0])

    def open(self, mode: str = "rb") -> Stream:
        """Open a file. Written data appears on close. Sequential reads are fastest."""
        return Stream(self._ask(lambda: self._store.open(self._path, mode, block_size=_CHUNK_BYTES)), self._ask)

    def read_text(self) -> str:
        return str(self._ask(lambda: self._store.cat_file(self._path)), "utf-8")

    def exists(self) -> bool:
        return bool(self._ask(lambda: self._store.exists(self._path)))

    def create(self, content: bytes = b"") -> None:
        """Write a small object. Raises FileExistsError if the object exists."""
        if self._url.startswith("local://"):  # for mode "x", fsspec up to 2026.6 makes no folder by itself
            self._ask(lambda: self._store.makedirs(self.parent._path, exist_ok=True))
        with self.open("xb") as stream:
            stream.write(content)

    def names(self) -> list[str]:
        """Names of all objects below, relative to this folder. Empty if the folder does not exist."""
        prefix = f"{self._path.rstrip('/')}/"
        return [str(path).removeprefix(prefix) for path in self._ask(lambda: self._store.find(self._path))]

    def unlink(self, *, missing_ok: bool = False) -> None:
        with suppress(FileNotFoundError) if missing_ok else self._translated():
            self._ask(lambda: self._store.rm_file(self._path))

    def move(self, target: Remote) -> None:
        self._ask(lambda: self._store.mv(self._path, target._path))

    def remove_tree(self) -> None:
        with suppress(FileNotFoundError):
            self._ask(lambda: self._store.rm(self._path, recursive=True))

    @cached_property
    def _place(self) -> tuple[Any, str]:
        try:
            # Other processes write here as well: listings are not cached.
            options = {"auto_mkdir": True} if self._url.startswith("local://") else {"use_listings_cache": False}
            store, path = import_module("fsspec.core").url_to_fs(self._url, **options)
        except ImportError as error:
            raise SnapshotError(f"{self._url} cannot be used: {error}") from error
        except ValueError as error:
            raise SnapshotError(f"{self._url} cannot hold snapshots: {error}") from error
        return store, str(path)

    @property
    def _store(self) -> Any:
        return self._place[0]

    @property
    def _path(self) -> str:
        return self._place[1]

    def _ask(self, question: Callable[[], Any]) -> Any:
        with self._translated():
            return question()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, FileNotFoundError, PermissionError) as error:
            number = error.errno or next(number for kind, number in _NUMBERS.items() if isinstance(error, kind))
            raise OSError(number, _first_line(error), self._url) from error  # Python picks the matching subclass
        except SnapshotError:
            raise
        except Exception as error:  # each store has its own errors, and none of them means a damaged file
            raise OSError(errno.EREMOTEIO, f"{type(error).__name__}: {_first_line(error)}", self._url) from error


class Stream(io.RawIOBase):
    """A file of fsspec that raises the errors of Remote."""

    def __init__(self, file: Any, ask: Callable[[Callable[[], Any]], Any]) -> None:
        self._file, self._ask = file, ask

    def readable(self) -> bool:
        return bool(self._file.readable())

    def writable(self) -> bool:
        return bool(self._file.writable())

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        return int(self._ask(lambda: self._file.readinto(buffer)))

    def write(self, content: Any) -> int:
        return int(self._ask(lambda: self._file.write(content)))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._ask(lambda: self._file.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            try:
                self._ask(self._file.close)
            finally:
                super().close()


_NUMBERS = {FileExistsError: errno.EEXIST, FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
Location = Path | Remote


def parse_location(text: str) -> Location:
    """A path, or any URL that fsspec knows; `file://` is a path."""
    if text.startswith(_LOCAL):
        return Path(text.removeprefix(_LOCAL)).absolute()
    return Remote(text) if is_url(text) else Path(text)


def _first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return next(iter(str(text).strip().splitlines()), "no message")
