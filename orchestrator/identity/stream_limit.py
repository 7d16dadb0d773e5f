"""How many answers without an end a caller may hold open: each costs a connection and a look four times a second."""

from __future__ import annotations

from collections import Counter

STREAMS = 256


class StreamLimit:
    """`most` for each caller, of this process. For one thread, which is the event loop's."""

    def __init__(self, most: int = STREAMS) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()

    def take(self, caller: str) -> bool:
        """False: he has as many as he may, and this one was not counted."""
        if self._taken[caller] >= self.most:
            return False
        self._taken[caller] += 1
        return True

    def leave(self, caller: str) -> None:
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
