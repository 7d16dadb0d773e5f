"""What was built a moment ago, for the many who look at one thing, and for those who look all day. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

_KEPT_PAGES = 500
_KEPT_PARTS = 200
_TOO_OLD = 6  # times as long as it is kept: nobody looked meanwhile, and whoever does now is not shown that

Built = TypeVar("Built")


class Recent(Generic[Built]):
    """What was built within the last second, by key; of many who ask at one time, one builds."""

    def __init__(self, *, keep_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._guard = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[float, Built]] = {}

    def recall(self, key: str) -> Built | None:
        """Without waiting for anyone; None where it has to be built."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None and self._clock() - kept[0] < self._keep_s else None

    def get(self, key: str, build: Callable[[], Built]) -> Built:
        with self._guard:
            if len(self._turns) > _KEPT_PAGES:
                self._turns, self._kept = {}, {}
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            kept = self.recall(key)
            if kept is not None:
                return kept
            content = build()
            self._kept[key] = (self._clock(), content)
            return content


@dataclass(frozen=True, slots=True)
class _Part(Generic[Built]):
    version: str
    built_at: float
    content: Built


class Parts(Generic[Built]):
    """Parts of pages, by key. One whose version has changed is built at once; one that is only older than `keep_s` is
    given as it is, and built anew in the background: the reader need not wait for what counts a million steps."""

    def __init__(self, *, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._guard = threading.Lock()
        self._kept: OrderedDict[str, _Part[Built]] = OrderedDict()
        self._building: set[str] = set()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="page-parts")

    def get(self, key: str, version: str, build: Callable[[], Built]) -> Built:
        part, now = self._kept.get(key), self._clock()
        if part is None or part.version != version or now - part.built_at > _TOO_OLD * self._keep_s:
            return self.renew(key, version, build)
        if now - part.built_at > self._keep_s:
            self._renew_soon(key, version, build)
        return part.content

    def renew(self, key: str, version: str, build: Callable[[], Built]) -> Built:
        content = build()
        with self._guard:
            self._kept[key] = _Part(version, self._clock(), content)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_PARTS:
                self._kept.popitem(last=False)
        return content

    def close(self) -> None:
        """Wait for what is being built."""
        self._builder.shutdown()

    def _renew_soon(self, key: str, version: str, build: Callable[[], Built]) -> None:
        with self._guard:
            if key in self._building:
                return
            self._building.add(key)
        self._builder.submit(self._renew_late, key, version, build)

    def _renew_late(self, key: str, version: str, build: Callable[[], Built]) -> None:
        """A build that fails leaves the part as it is: the next reader has it tried again."""
        try:
            self.renew(key, version, build)
        finally:
            with self._guard:
                self._building.discard(key)
