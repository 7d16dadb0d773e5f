"""The thread that empties the trash of run directories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from orchestrator.jobfolder.folder import Folder
from orchestrator.jobfolder.removal import remove
from orchestrator.upkeep.housekeeping import TRASH

log = structlog.get_logger()

_EVERY_S = 60.0
_LONGEST_S = 300.0  # time limit for one folder, because a process may still write to it


class TrashSweeper:
    """Several may sweep one root at the same time, in one process or in several."""

    def __init__(
        self, roots: Collection[Path], *, every_s: float = _EVERY_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._roots = sorted(set(roots))
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, even in the middle of a folder. The next sweeper continues there."""
        self._ending.set()
        self._thread.join(timeout=5)

    def sweep(self) -> None:
        """Remove everything that is in the trash now."""
        for root in self._roots:
            try:
                with Folder.of(root) as folder, folder.within(Path(TRASH)) as trash:
                    for name in sorted(trash.names()):
                        self._remove(trash, name)
            except OSError as error:
                log.warning("trash cannot be read", root=str(root), reason=str(error))

    def _remove(self, trash: Folder, name: str) -> None:
        """Remove one entry. If it takes too long or fails, the next round tries again."""
        deadline = self._monotonic() + _LONGEST_S
        try:
            remove(trash, name, lambda: not self._ending.is_set() and self._monotonic() < deadline)
        except OSError as error:
            log.warning("trash not removed", name=name, reason=str(error))

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                self.sweep()
            except Exception:
                # One bad folder must not stop later rounds.
                log.exception("trash not swept")
