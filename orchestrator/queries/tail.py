"""Caches the newest events of all jobs, so that 200 followers cost the store no more than one."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from orchestrator.store.event_reader import EventReader
from orchestrator.store.records import EventNotice

_EVERY_S = 0.5
_KEPT = 5000  # events; a follower that is farther behind reads from the store
_MOST = 500  # events in one answer of the store


class Tail:
    """Thread-safe. Raises StoreUnavailable."""

    def __init__(
        self,
        reader: EventReader,
        *,
        every_s: float = _EVERY_S,
        kept: int = _KEPT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._every_s = every_s
        self._kept = kept
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._looked_at = float("-inf")
        self._known: tuple[int, tuple[EventNotice, ...]] | None = None  # an id, and all events after it

    def newest(self) -> int:
        """Return the id of the newest event, 0 if there is none."""
        return self._reader.newest()

    def recall(self, event_id: int) -> Sequence[EventNotice] | None:
        """Return the events after `event_id` from the cache. None if `look` has to read the store."""
        known = self._known
        if known is None or event_id < known[0] or self._monotonic() >= self._looked_at + self._every_s:
            return None
        return known[1][bisect_right(known[1], event_id, key=lambda each: each.id) :]

    def look(self, event_id: int) -> Sequence[EventNotice]:
        """Return the events after `event_id`, read from the store if necessary. Of concurrent callers, one reads."""
        if self._turn.acquire(blocking=False):
            try:
                self._read_on()
            finally:
                self._turn.release()
        known = self._known
        if known is None or event_id < known[0]:
            return self._reader.after(event_id, limit=_MOST)
        return known[1][bisect_right(known[1], event_id, key=lambda each: each.id) :]

    def _read_on(self) -> None:
        if self._monotonic() < self._looked_at + self._every_s:
            return
        floor, events = self._known or (self._reader.newest(), ())
        reached = events[-1].id if events else floor
        found = self._reader.after(reached, limit=self._kept)
        if len(found) == self._kept:  # nobody has followed for a while
            floor, events, found = self._reader.newest(), (), ()
        events = (*events, *found)
        dropped = max(0, len(events) - self._kept)
        self._known = (events[dropped - 1].id if dropped else floor, events[dropped:])
        self._looked_at = self._monotonic()
