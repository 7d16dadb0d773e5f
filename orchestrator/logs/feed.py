"""One log, read once for all who follow it: a hundred who look at one job cost the disk and the store what one does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from weakref import WeakSet, WeakValueDictionary

from orchestrator.domain.errors import NotFound
from orchestrator.logs.follow import Follower
from orchestrator.logs.reader import LogRequest, Logs

EVERY_S = 0.25
_KEPT_BYTES = 2 * 1024 * 1024  # for those who take lines more slowly than others of the same feed
_READERS = 16  # a slow disk holds these threads, and not those that answer requests
_LEFT_OUT = b"[lines are missing here: they came faster than they were taken]\n"


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last pieces, and how many there were before them. Never changed: who reads it needs no lock."""

    dropped: int = 0
    pieces: tuple[bytes, ...] = ()
    ended: bool = False
    fresh_until: float = float("-inf")  # by the monotonic clock: before that nobody need look again

    @property
    def count(self) -> int:
        return self.dropped + len(self.pieces)


class Feeds:
    """The logs that are followed now. A feed ends with its last listener."""

    def __init__(self, logs: Logs, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._feeds: WeakValueDictionary[tuple[str, LogRequest], Feed] = WeakValueDictionary()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader")

    def listen(self, job_id: str, request: LogRequest) -> Listener:
        wanted = replace(request, tail=0)  # each has last lines of his own
        with self._guard:
            feed = self._feeds.get((job_id, wanted))
            if feed is None or feed.sent.ended:  # a retry may have begun since
                feed = Feed(Follower(self._logs, job_id, wanted), self._monotonic)
                self._feeds[job_id, wanted] = feed
            return Listener(feed, request.tail, self._readers)


class Feed:
    """What a follower has read, for several listeners in several threads. Made by Feeds."""

    def __init__(self, follower: Follower, monotonic: Callable[[], float]) -> None:
        self._follower = follower
        self._monotonic = monotonic
        self._turn = threading.Lock()  # to read; guards the listeners too
        self._listeners: WeakSet[Listener] = WeakSet()
        self.sent = _Sent()

    def is_fresh(self) -> bool:
        return self.sent.ended or self._monotonic() < self.sent.fresh_until

    def begin(self, listener: Listener, tail: int) -> bytes | None:
        """The last lines of the log so far; what comes then is for `listener` to hear. None: another reads just now."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            self._read_on()
            listener.heard, listener.ended = self.sent.count, self.sent.ended
            last_lines = self._follower.last_lines()
            self._listeners.add(listener)
        finally:
            self._turn.release()
        return _render(last_lines(tail))  # others need not wait for it

    def look(self) -> None:
        """Read what is new; of several that look at one time, one does."""
        if self._turn.acquire(blocking=False):
            try:
                if not self.is_fresh():
                    self._read_on()
            finally:
                self._turn.release()

    def _read_on(self) -> None:
        sent, follower = self.sent, self._follower
        lines, gone = list[str](), False
        try:
            lines = follower.poll()
        except NotFound:
            gone = True
        finally:  # in an outage too: the others need not find that out one by one
            pieces = (*sent.pieces, _render(lines)) if lines else sent.pieces
            dropped = self._count_heard(sent, pieces)
            fresh_until = float("-inf") if follower.behind else self._monotonic() + EVERY_S
            self.sent = _Sent(sent.dropped + dropped, pieces[dropped:], follower.ended or gone, fresh_until)

    def _count_heard(self, sent: _Sent, pieces: Sequence[bytes]) -> int:
        """How many of the pieces nobody waits for, or are too much to be kept for the slowest."""
        count = min((listener.heard for listener in self._listeners), default=sent.count) - sent.dropped
        count, kept = max(0, count), sum(map(len, pieces[max(0, count) :]))
        while kept > _KEPT_BYTES and count < len(pieces) - 1:
            kept -= len(pieces[count])
            count += 1
        return count


class Listener:
    """One of those who follow a log. Not for several threads at once."""

    def __init__(self, feed: Feed, tail: int, readers: Executor) -> None:
        self._feed = feed
        self._tail = tail
        self._readers = readers
        self.heard = -1  # pieces; -1: it has not begun
        self.ended = False

    async def hear(self) -> bytes:
        """What came since the last time: from memory, or read now. Raises StoreUnavailable."""
        text = self.recall()
        if text is not None:
            return text
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.look)

    def recall(self) -> bytes | None:
        """None: somebody has to look."""
        sent = self._feed.sent
        if self.heard < 0 or (sent.count == self.heard and not self._feed.is_fresh()):
            return None
        return self._take(sent)

    def look(self) -> bytes:
        if self.heard < 0:
            return self._feed.begin(self, self._tail) or b""
        self._feed.look()
        return self._take(self._feed.sent)

    def _take(self, sent: _Sent) -> bytes:
        missed = self.heard < sent.dropped
        pieces = sent.pieces[max(0, self.heard - sent.dropped) :]
        self.heard, self.ended = sent.count, sent.ended
        return b"".join([_LEFT_OUT, *pieces] if missed else pieces)


def _render(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
