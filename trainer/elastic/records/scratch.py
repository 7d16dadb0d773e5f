"""A folder of the temporary directory that outlives its process by no more than one successor: nobody who is killed can
sweep, so each folder is locked as long as its owner lives, and whoever makes the next one sweeps what nobody locks.
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
    """Owned by this process. Raises OSError when there can be no folder."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another one swept it before it was locked
            with suppress(OSError):  # where there are no locks, nobody sweeps
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def release(self) -> None:
        """In a forked child: the folder is its parent's."""
        os.close(self._lock)

    def sweep(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def _sweep(folder: Path) -> None:
    """Others' folders stay: those of other users, and those of living owners, which are locked."""
    for left in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid != os.getuid():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
