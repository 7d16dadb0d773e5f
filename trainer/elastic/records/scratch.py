"""Temporary folders that are removed even if their owner is killed.

Each folder is locked while its owner lives. The process that creates the next one removes all that are not locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = ".elasticrun-scratch-"


class Scratch:
    """A folder owned by this process. Raises OSError if it cannot be created."""

    def __init__(self) -> None:
        sweep_scratch()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another process removed it before it was locked
            with suppress(OSError):  # without locks, no process removes another's folder
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def release(self) -> None:
        """Unlock the folder without removing it. A forked child calls this, because the folder is its parent's."""
        os.close(self._lock)

    def sweep(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def sweep_scratch() -> None:
    """Remove unlocked folders of this user. Folders of living owners are locked."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid != os.getuid():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
