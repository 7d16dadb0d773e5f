"""Helpers for waiting loops: pauses between looks, the age of a value, and a notice after a while."""

from __future__ import annotations

import time

from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.records.files import say

LOOKS_PER_S = 2000  # by all agents of a large group together
NOTICE_AFTER_S = 3.0
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.005, 0.1


class Unchanged:
    """Measures how long a value has stayed the same, by an AwakeClock."""

    def __init__(self, clock: AwakeClock) -> None:
        self._clock = clock
        self._value: object = None
        self._since_s = 0.0

    def measure_s(self, value: object) -> float:
        now_s = self._clock.now_s()
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


class Backoff:
    """Pauses between looks. Each is longer than the last, and longer in a large group, to spare its store."""

    def __init__(self) -> None:
        self._pause_s = _SHORTEST_POLL_S

    def wait(self, nodes: int) -> None:
        time.sleep(max(self._pause_s, nodes / LOOKS_PER_S))
        self._pause_s = min(_LONGEST_POLL_S, self._pause_s * 1.2)


class Notice:
    """Logs once, after NOTICE_AFTER_S, what this agent waits for."""

    def __init__(self, sentence: str) -> None:
        self._sentence, self._tell_at_s = sentence, time.monotonic() + NOTICE_AFTER_S

    def give(self) -> None:
        if time.monotonic() > self._tell_at_s:
            self._tell_at_s = float("inf")
            say(self._sentence)
