"""Caches of built pages and of parts of pages, shared by all browsers that poll them. Thread-safe."""

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
_TOO_OLD = 6  # a part older than this many times `keep_s` is rebuilt before it is shown

Built = TypeVar("Built")


class Recent(Generic[Built]):
    """Caches what was built within the last `keep_s`, by key. Of concurrent callers, one builds and the others wait."""

    def __init__(self, *, keep_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._guard = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[float, Built]] = {}

    def recall(self, key: str) -> Built | None:
        """Return the cached value, without waiting. None if it has to be built."""
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
    """Caches parts of pages, by key.

    If the version of a part has changed, `get` rebuilds it. If the part is only older than `keep_s`, `get` returns it
    and rebuilds it in the background, because that can take long: a job may have a million steps to count.
    """

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
        """Wait for running builds."""
        self._builder.shutdown()

    def _renew_soon(self, key: str, version: str, build: Callable[[], Built]) -> None:
        with self._guard:
            if key in self._building:
                return
            self._building.add(key)
        self._builder.submit(self._renew_late, key, version, build)

    def _renew_late(self, key: str, version: str, build: Callable[[], Built]) -> None:
        """Rebuild a part. A failed build leaves it unchanged, and the next call of `get` tries again."""
        try:
            self.renew(key, version, build)
        finally:
            with self._guard:
                self._building.discard(key)
