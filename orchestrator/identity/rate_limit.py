"""Rate limits: a token bucket for each caller (https://en.wikipedia.org/wiki/Token_bucket).

Each process counts for itself. A caller is a verified name, or an address for requests with an invalid token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_S = 10.0  # a full bucket allows the requests of this many seconds at once
MOST = 10_000  # cached callers; with more, all start again with full buckets
GUESSES_PER_S = 20.0  # requests from one address with an invalid token


class RateLimit:
    """Allows `per_s` requests per second, and `BURST_S` times as many at once after a pause. Thread-safe."""

    def __init__(self, per_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # what was left, and when

    def __len__(self) -> int:
        """Return the number of cached callers."""
        return len(self._buckets)

    def take(self, caller: str) -> float:
        """Count a request and return 0. Above the limit, count nothing and return the seconds to wait."""
        with self._lock:
            left, now = self._left(caller)
            if left < 1:
                return (1 - left) / self._per_s
            if len(self._buckets) >= MOST and caller not in self._buckets:
                self._buckets.clear()
            self._buckets[caller] = (left - 1, now)
            return 0.0

    def wait_s(self, caller: str) -> float:
        """Return the seconds to wait before the next request, 0 if it may pass now. Counts nothing."""
        with self._lock:
            left, _ = self._left(caller)
            return 0.0 if left >= 1 else (1 - left) / self._per_s

    def _left(self, caller: str) -> tuple[float, float]:
        now = self._monotonic()
        left, at = self._buckets.get(caller, (self._most, now))
        return min(self._most, left + (now - at) * self._per_s), now
