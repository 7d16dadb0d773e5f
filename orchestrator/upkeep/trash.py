"""The thread that empties the trash of run directories: slowly, and again after whatever stopped it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection
from pathlib import Path

import structlog

from orchestrator.upkeep.housekeeping import TRASH

log = structlog.get_logger()

_EVERY_S = 60.0


class TrashSweeper:
    """Any number of them, in one process or several, may sweep the same root."""

    def __init__(self, roots: Collection[Path], *, every_s: float = _EVERY_S) -> None:
        self._roots = sorted(set(roots))
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is being removed is left half-way: the next one goes on with it."""
        self._ending.set()
        self._thread.join(timeout=5)

    def sweep(self) -> None:
        """Remove what lies there now."""
        for root in self._roots:
            for path in self._found(root / TRASH):
                if self._ending.is_set():
                    return
                remove(path)

    def _found(self, trash: Path) -> list[Path]:
        try:
            return sorted(trash.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            log.warning("trash cannot be read", folder=str(trash), reason=str(error))
            return []

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                self.sweep()
            except Exception:
                # The thread's edge: one bad folder must not fill the disk for ever.
                log.exception("trash not swept")


def remove(path: Path) -> None:
    """A folder with all below it, or a file. No link is followed. What cannot be removed is told and left."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return  # another one was faster
    except OSError as error:
        log.warning("trash not removed", path=str(path), reason=str(error))
