"""Look up names of hosts in a thread of its own, because a name server can take many seconds to answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class NameLookup:
    """Calls `look_up` with each name and port, one after the other. The thread starts with the first."""

    def __init__(self, look_up: Callable[[str, int], None]) -> None:
        self._look_up = look_up
        self._names: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, host: str, port: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="link names", daemon=True)
            self._thread.start()
        self._names.put((host, port))

    def close(self, timeout_s: float) -> None:
        """End the thread. A lookup that takes longer than `timeout_s` continues."""
        self._names.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (name := self._names.get()) is not None:
            self._look_up(*name)
