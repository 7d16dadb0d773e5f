"""A clock that excludes the time in which this process was paused. Standard library only.

SIGSTOP, a suspended job and a paused virtual machine stop a process while the system's clock continues. That time must
not count as time spent waiting for others.
"""

from __future__ import annotations

import time


class AwakeClock:
    """Counts at most `most_s` seconds between two readings, so it must be read more often than that."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._now_s, self._read_s = 0.0, time.monotonic()

    def now_s(self) -> float:
        """Seconds since the clock was created. Not thread-safe."""
        read_s, self._read_s = self._read_s, time.monotonic()
        self._now_s += min(self._most_s, self._read_s - read_s)
        return self._now_s
