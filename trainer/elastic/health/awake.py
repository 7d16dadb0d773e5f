"""A clock that leaves out the time in which this process was paused. Standard library only.

SIGSTOP, a suspended job and a paused virtual machine stop a process, and the system's clock goes on. A process that
wakes up has not waited for anybody meanwhile.
"""

from __future__ import annotations

import time


class AwakeClock:
    """At most `most_s` seconds count between two readings, so read it more often than that."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._now_s, self._read_s = 0.0, time.monotonic()

    def now_s(self) -> float:
        """Seconds since the first reading. One thread's."""
        read_s, self._read_s = self._read_s, time.monotonic()
        self._now_s += min(self._most_s, self._read_s - read_s)
        return self._now_s
