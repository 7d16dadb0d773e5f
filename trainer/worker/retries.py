"""Tries of a last snapshot: training is over, so a disk that is full for a while must not cost what was trained."""

from __future__ import annotations

import time

from trainer.worker.signals import StopFlag

PATIENCE_S, _EVERY_S = 3600.0, 10.0


class Retries:
    """The pauses between tries, for an hour or until a stop."""

    def __init__(self, stop: StopFlag) -> None:
        self._stop, self._until = stop, time.monotonic() + PATIENCE_S

    @property
    def are_over(self) -> bool:
        return self._stop.is_set or time.monotonic() > self._until

    def pause(self) -> None:
        """Wait before the next try. A stop ends the pause."""
        until = time.monotonic() + _EVERY_S
        while time.monotonic() < until and not self._stop.is_set:
            time.sleep(0.1)
