"""Limits on the memory of request bodies: of all callers together, and of each caller. Short bodies are not counted.

Not thread-safe: only the event loop uses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

SHORT_BYTES = 8 * 1024  # parsing takes about a millisecond
MOST_BYTES = 32 * 1024 * 1024
MOST_OF_ONE_BYTES = MOST_BYTES // 2
WAIT_S = 1.0  # the Retry-After of a refused request


class BodyMemory:
    """`turn` is held while a long body is parsed, because parsing takes several times the memory of the body."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_of_one_bytes: int = MOST_OF_ONE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.most_of_one_bytes = most_of_one_bytes
        self.turn = asyncio.Semaphore(1)
        self.used: Counter[str] = Counter()  # bytes by sender

    @property
    def free_bytes(self) -> int:
        return self.most_bytes - self.used.total()


class BodyUse:
    """The memory of one request's body, held until the request is answered."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self._sender = ""
        self._held_bytes = 0

    def may_hold(self, sender: str, size_bytes: int) -> bool:
        """Whether the sender's limit allows this request to hold `size_bytes`."""
        return self.memory.used[sender] - self._held_bytes + size_bytes <= self.memory.most_of_one_bytes

    def hold(self, sender: str, size_bytes: int) -> bool:
        """Raise the held memory to `size_bytes` in total. Returns False, without effect, if the memory is full."""
        if size_bytes <= SHORT_BYTES:
            return True
        more_bytes = size_bytes - self._held_bytes
        if more_bytes > self.memory.free_bytes:
            return False
        self._sender, self._held_bytes = sender, size_bytes
        self.memory.used[sender] += more_bytes
        return True

    def release(self) -> None:
        self.memory.used[self._sender] -= self._held_bytes
        self._held_bytes = 0
        if not self.memory.used[self._sender]:
            del self.memory.used[self._sender]
