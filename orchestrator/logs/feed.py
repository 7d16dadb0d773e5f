"""Read a followed log once for all its listeners, so that a hundred listeners cost as much as one."""

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
_KEPT_BYTES = 2 * 1024 * 1024  # kept for slow listeners
_READERS = 16  # a slow disk blocks these threads, not those that answer requests
_LEFT_OUT = b"[lines are missing here: the log grew faster than you read it]\n"


@dataclass(frozen=True, slots=True)
class _Sent:
    """The newest pieces of a log, after `dropped` older ones. Immutable, so readers need no lock."""

    dropped: int = 0
    pieces: tuple[bytes, ...] = ()
    ended: bool = False
    fresh_until: float = float("-inf")  # on the monotonic clock: no read is needed before then

    @property
    def count(self) -> int:
        return self.dropped + len(self.pieces)


class Feeds:
    """The logs that are followed now. A feed lives as long as its last listener."""

    def __init__(self, logs: Logs, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._feeds: WeakValueDictionary[tuple[str, LogRequest], Feed] = WeakValueDictionary()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="log-reader")

    def listen(self, job_id: str, request: LogRequest) -> Listener:
        wanted = replace(request, tail=0)  # each listener has its own last lines
        with self._guard:
            feed = self._feeds.get((job_id, wanted))
            if feed is None or feed.sent.ended:  # a retry may have started since
                feed = Feed(Follower(self._logs, job_id, wanted), self._monotonic)
                self._feeds[job_id, wanted] = feed
            return Listener(feed, request.tail, self._readers)


class Feed:
    """Shares one follower's lines among listeners in several threads. Created by Feeds."""

    def __init__(self, follower: Follower, monotonic: Callable[[], float]) -> None:
        self._follower = follower
        self._monotonic = monotonic
        self._turn = threading.Lock()  # held by the thread that reads; guards the listeners too
        self._listeners: WeakSet[Listener] = WeakSet()
        self.sent = _Sent()

    def is_fresh(self) -> bool:
        return self.sent.ended or self._monotonic() < self.sent.fresh_until

    def begin(self, listener: Listener, tail: int) -> bytes | None:
        """Return the last lines so far and add the listener for later ones. None if another thread is reading."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            self._read_on()
            listener.position, listener.ended = self.sent.count, self.sent.ended
            last_lines = self._follower.last_lines()
            self._listeners.add(listener)
        finally:
            self._turn.release()
        return _render(last_lines(tail))  # outside the lock, so that others do not wait

    def look(self) -> None:
        """Read new lines. Of several concurrent calls, one reads."""
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
        finally:  # also in an outage, so that the other listeners do not each retry
            pieces = (*sent.pieces, _render(lines)) if lines else sent.pieces
            dropped = self._count_heard(sent, pieces)
            fresh_until = float("-inf") if follower.behind else self._monotonic() + EVERY_S
            self.sent = _Sent(sent.dropped + dropped, pieces[dropped:], follower.ended or gone, fresh_until)

    def _count_heard(self, sent: _Sent, pieces: Sequence[bytes]) -> int:
        """Count the pieces that every listener has, or that are too many to keep for the slowest."""
        count = min((listener.position for listener in self._listeners), default=sent.count) - sent.dropped
        count, kept = max(0, count), sum(map(len, pieces[max(0, count) :]))
        while kept > _KEPT_BYTES and count < len(pieces) - 1:
            kept -= len(pieces[count])
            count += 1
        return count


class Listener:
    """One follower of a log. Not thread-safe."""

    def __init__(self, feed: Feed, tail: int, readers: Executor) -> None:
        self._feed = feed
        self._tail = tail
        self._readers = readers
        self.position = -1  # number of pieces; -1 before the start
        self.ended = False

    async def read(self) -> bytes:
        """Return what is new since the last call, from memory or the disk. Raises StoreUnavailable."""
        text = self.recall()
        if text is not None:
            return text
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.look)

    def recall(self) -> bytes | None:
        """Return what is new in memory. None if the log must be read."""
        sent = self._feed.sent
        if self.position < 0 or (sent.count == self.position and not self._feed.is_fresh()):
            return None
        return self._take(sent)

    def look(self) -> bytes:
        if self.position < 0:
            return self._feed.begin(self, self._tail) or b""
        self._feed.look()
        return self._take(self._feed.sent)

    def _take(self, sent: _Sent) -> bytes:
        missed = self.position < sent.dropped
        pieces = sent.pieces[max(0, self.position - sent.dropped) :]
        self.position, self.ended = sent.count, sent.ended
        return b"".join([_LEFT_OUT, *pieces] if missed else pieces)


def _render(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
