"""Report that this rank waits for its peers. The ranks that stopped first are then those that do not report it.

The loop marks when it waits in a collective. A thread checks the mark and writes one line if the wait lasts. A frozen
process runs no such thread, and a main thread that hangs elsewhere has set no mark. On a GPU the host also waits for
its own device, so a kernel that hangs looks like a wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.worker.heartbeat import Heartbeat

AFTER_S = 2.0
_STEPS = 3.0  # shorter waits are normal unevenness of ranks, or on a GPU the step itself
_LOOK_EVERY_S = 0.5


class Waits:
    """The main thread begins and ends waits. A daemon thread watches them."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._lock = threading.Lock()  # no WAITING line may follow the line that ends the wait
        self._since: float | None = None
        self._is_reported = False
        self._after_s = AFTER_S
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="waits", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def begin(self) -> None:
        """This rank starts to wait for its peers. Idempotent."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """The wait is over. Report its end if the wait was reported. Idempotent."""
        with self._lock:
            self._since = None
            if self._is_reported:
                self._is_reported = False
                self._heartbeat.repeat()

    def expect(self, step_s: float) -> None:
        """Set the duration of a step. Only longer waits are reported."""
        self._after_s = max(AFTER_S, _STEPS * step_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def look(self) -> None:
        """Report a long wait, once. The watching thread calls this."""
        with self._lock:
            if self._since is not None and not self._is_reported and time.monotonic() - self._since >= self._after_s:
                self._is_reported = True
                self._heartbeat.wait()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            self.look()
