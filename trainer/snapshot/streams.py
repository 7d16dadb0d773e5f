"""The readers and writers that torch's distributed checkpoint (DCP) uses: a directory or an object store."""

from __future__ import annotations

import io
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from trainer.contract.manifest import FileEntry
from trainer.snapshot.files import Checksum, checksum_files
from trainer.snapshot.later_metadata import read_later_metadata
from trainer.snapshot.remote import Location, Remote

COPY_AHEAD_BYTES = 10_000_000  # DCP's own default


class Writer(FileSystemWriter):
    """`describe` returns sizes and checksums of the written files. Raises what FileSystemWriter does.

    At most `copy_ahead_bytes` are copied from a device while earlier ones are written. If it is not 0, DCP starts CUDA
    on the calling thread's current device and waits for its current stream.
    """

    def __init__(self, directory: Location, *, copy_ahead_bytes: int = 0) -> None:
        super().__init__(
            "" if isinstance(directory, Remote) else directory,
            sync_files=not isinstance(directory, Remote),
            per_thread_copy_ahead=copy_ahead_bytes,
        )
        self._directory, self._store = directory, Store()
        if isinstance(directory, Remote):
            self.fs, self.path = self._store, directory  # type: ignore[assignment]  # torch's own types are narrower

    @property
    def checkpoint_id(self) -> str:
        """A string for `.metadata`, a pickle: Python 3.13 pickles paths by a module that older versions lack."""
        return str(self._directory)

    def describe(self, names: list[str]) -> dict[str, FileEntry]:
        """Checksums taken while writing to an object store, or from the files on disk."""
        if isinstance(self._directory, Remote):
            return {name: self._store.written[name].entry for name in names}
        return checksum_files(self._directory, names)


def open_reader(directory: Location) -> FileSystemReader:
    read_later_metadata()
    if not isinstance(directory, Remote):
        return FileSystemReader(directory)
    return _StoreReader(directory)


class _StoreReader(FileSystemReader):
    def __init__(self, directory: Remote) -> None:
        super().__init__("")
        self.fs, self.path = Store(), directory  # type: ignore[assignment]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read sequentially: a stream reads ahead."""
        return super().read_data(replace(plan, items=sorted(plan.items, key=self._place_of)), planner)

    def _place_of(self, item: ReadItem) -> tuple[str, int]:
        place = self.storage_data[item.storage_index]
        return place.relative_path, place.offset


class Store(FileSystemBase):
    """DCP's view of an object store."""

    def __init__(self) -> None:
        self.written: dict[str, Checksum] = {}  # by name, without folders

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[io.IOBase, None, None]:
        with path.open(mode) as stream:
            if mode == "rb":
                yield stream
            else:
                self.written[path.name] = checksum = Checksum()
                yield _Checksummed(stream, checksum)

    def concat_path(self, path: Any, suffix: str) -> Any:
        return path / suffix

    def init_path(self, path: Any) -> Any:
        return path

    def rename(self, path: Any, new_path: Any) -> None:
        path.move(new_path)
        self.written[new_path.name] = self.written.pop(path.name)

    def mkdir(self, path: Any) -> None:
        """Object stores have no directories."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, Remote)

    def exists(self, path: Any) -> bool:
        return bool(path.exists())

    def rm_file(self, path: Any) -> None:
        path.unlink()


@contextmanager
def without_group_warning() -> Iterator[None]:
    """Silence DCP's warning that it works without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def in_one_line(error: BaseException, directory: Location) -> OSError:
    """The OSError that DCP's writer wraps in a RuntimeError, or a summary of the error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return OSError(cause.errno, cause.strerror, str(cause.filename or directory))
        cause = cause.__cause__ or cause.__context__
    text = str(error).strip() or "no message"
    return OSError(f"{type(error).__name__}: {text.splitlines()[0]}")


class _Checksummed(io.RawIOBase):
    """DCP writes sequentially and asks for the position."""

    def __init__(self, stream: io.RawIOBase, checksum: Checksum) -> None:
        self._stream, self._checksum = stream, checksum

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._checksum.add(content)
        return self._stream.write(content) or 0

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()
        super().close()
