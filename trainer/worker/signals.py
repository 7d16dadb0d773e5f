"""Graceful stop: SIGTERM sets a flag, and the loop checks it once per step.

The ranks agree in the step's own all-reduce on the step after which all stop; then they commit a snapshot and exit with
128 + SIGTERM = 143, the code that a shell gives for the same signal: stopped, not finished.
"""

from __future__ import annotations

import signal
from types import FrameType


class StopFlag:
    def __init__(self) -> None:
        self.is_set = False

    def install(self) -> None:
        """Handle SIGTERM, which the agent may have blocked so far. Further signals change nothing: schedulers often
        send several.
        """
        signal.signal(signal.SIGTERM, self._set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
