"""Saying that this rank waits for its peers, so that those that stopped first can be told by their silence.

The loop marks where it waits in a collective. A thread looks at the mark now and then, and when a wait has lasted it
writes one line; a frozen process has no such thread, and a main thread that hangs elsewhere has set no mark. On an
accelerator the host waits for its own device too: what hangs in a kernel there reads as a wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.worker.heartbeat import Heartbeat

AFTER_S = 2.0
_STEPS = 3.0  # a wait of fewer steps is the ordinary unevenness of ranks, or on an accelerator the step itself
_LOOK_EVERY_S = 0.5


class Waits:
    """The main thread begins and ends waits; the watching thread is a daemon and sleeps between its looks."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._lock = threading.Lock()  # so that no WAITING is written behind the line that ends the wait
        self._since: float | None = None
        self._is_reported = False
        self._after_s = AFTER_S

    def start(self) -> None:
        threading.Thread(target=self._watch, name="waits", daemon=True).start()

    def begin(self) -> None:
        """From now on this rank waits for its peers. Repeating it changes nothing."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """The wait is over; if it was told, so is its end. Repeating it changes nothing."""
        with self._lock:
            self._since = None
            if self._is_reported:
                self._is_reported = False
                self._heartbeat.repeat()

    def expect(self, step_s: float) -> None:
        """A step took so long: only what is long beside it is worth a line."""
        self._after_s = max(AFTER_S, _STEPS * step_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def look(self) -> None:
        """Tell a wait that has lasted, once. The watching thread calls this."""
        with self._lock:
            if self._since is not None and not self._is_reported and time.monotonic() - self._since >= self._after_s:
                self._is_reported = True
                self._heartbeat.wait()

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_LOOK_EVERY_S)
            self.look()
