"""A clock that leaves out the time in which this process stood still. Standard library only.

SIGSTOP, a suspended job and a paused virtual machine stop a process, and the system's clock goes on. Whoever wakes up
has waited for nobody meanwhile.
"""

from __future__ import annotations

import time


class AwakeClock:
    """Between two readings at most `most_s` counts: it is to be read more often than that."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._now_s, self._read_s = 0.0, time.monotonic()

    def now_s(self) -> float:
        """Seconds since the first reading. One thread's."""
        read_s, self._read_s = self._read_s, time.monotonic()
        self._now_s += min(self._most_s, self._read_s - read_s)
        return self._now_s
