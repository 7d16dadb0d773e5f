"""Take the events of an inotify(7) instance out of the kernel's queue before it is full.

The kernel keeps 16,384 events by default (fs.inotify.max_queued_events) and drops all others. Thousands of jobs that
write each second exceed that between two passes.
"""

from __future__ import annotations

import re
import select
import socket
import sys
import threading
from typing import NamedTuple

if sys.platform == "linux":
    from inotify_simple import INotify, flags

_PAUSE_MS = 500  # between two readings; in this time, 10,000 jobs with a line each second cause 5,000 events
_MOST = 100_000  # different events that are kept; more count as an overflow


class Change(NamedTuple):
    watch: int
    mask: int
    name: str


class KernelQueue:
    """A thread reads the queue from `start` until `stop`. Equal events count once. Thread-safe.

    Events with names that do not match `names` are dropped, because a job may create any number of files.
    """

    def __init__(self, inotify: INotify, names: re.Pattern[str]) -> None:
        self._inotify = inotify
        self._names = names
        self._changes: set[Change] = set()
        self._turn = threading.Lock()
        self._ending, self._end = socket.socketpair()  # readable once its peer is closed
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inotify", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread soon, and close the instance. Does not wait: a finalizer may call this in any thread."""
        self._end.close()
        if self._thread is None:
            self._close()

    def take(self) -> set[Change]:
        """Return all events since the last call, unordered."""
        with self._turn:
            self._read()
            changes, self._changes = self._changes, set()
        return changes

    def _run(self) -> None:
        ending, either = select.poll(), select.poll()
        ending.register(self._ending, select.POLLIN)
        either.register(self._ending, select.POLLIN)
        either.register(self._inotify.fileno(), select.POLLIN)
        while not ending.poll(_PAUSE_MS):
            either.poll()
            with self._turn:
                self._read()
        self._close()

    def _read(self) -> None:
        self._changes.update(
            Change(event.wd, event.mask, event.name)
            for event in self._inotify.read(timeout=0)
            if not event.name or self._names.fullmatch(event.name)
        )
        if len(self._changes) > _MOST:
            self._changes = {Change(-1, flags.Q_OVERFLOW, "")}

    def _close(self) -> None:
        self._inotify.close()
        self._ending.close()
