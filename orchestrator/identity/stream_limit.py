"""A limit on the open streams of a caller. Each stream costs a connection and four queries a second."""

from __future__ import annotations

from collections import Counter

STREAMS = 256


class StreamLimit:
    """Allows `most` streams for each caller in this process. Not thread-safe: only the event loop uses it."""

    def __init__(self, most: int = STREAMS) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()

    def take(self, caller: str) -> bool:
        """Count a stream. Returns False, and counts nothing, if the caller has `most` already."""
        if self._taken[caller] >= self.most:
            return False
        self._taken[caller] += 1
        return True

    def leave(self, caller: str) -> None:
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
