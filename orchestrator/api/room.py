"""How much of request bodies is in memory at one time, of all callers together and of each. Short ones are not
counted. For one thread, which is the event loop's."""

from __future__ import annotations

import asyncio
from collections import Counter

SHORT_BYTES = 8 * 1024  # a millisecond of JSON or some of YAML
MOST_BYTES = 32 * 1024 * 1024
MOST_OF_ONE_BYTES = MOST_BYTES // 2
WAIT_S = 1.0  # until a request that found no room is to be sent again


class Room:
    """`turn`: of those whose body is parsed, which takes several times its size."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_of_one_bytes: int = MOST_OF_ONE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.most_of_one_bytes = most_of_one_bytes
        self.turn = asyncio.Semaphore(1)
        self.taken: Counter[str] = Counter()

    @property
    def free_bytes(self) -> int:
        return self.most_bytes - self.taken.total()


class Claim:
    """What one request holds of the room until it is answered."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._sender = ""
        self._held_bytes = 0

    def has_room(self, sender: str, size_bytes: int) -> bool:
        """Whether its sender may hold so much."""
        return self.room.taken[sender] - self._held_bytes + size_bytes <= self.room.most_of_one_bytes

    def hold(self, sender: str, size_bytes: int) -> bool:
        """Hold so much in all. False: there is not so much room."""
        if size_bytes <= SHORT_BYTES:
            return True
        more_bytes = size_bytes - self._held_bytes
        if more_bytes > self.room.free_bytes:
            return False
        self._sender, self._held_bytes = sender, size_bytes
        self.room.taken[sender] += more_bytes
        return True

    def release(self) -> None:
        self.room.taken[self._sender] -= self._held_bytes
        self._held_bytes = 0
        if not self.room.taken[self._sender]:
            del self.room.taken[self._sender]
