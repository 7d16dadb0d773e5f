"""A cache of answers of the store for a few seconds, so that a request rarely has to ask it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

MOST = 10_000  # entries; above it the cache is emptied


@dataclass(frozen=True, slots=True)
class Remembered(Generic[Value]):
    """A cached answer, which may be None."""

    value: Value


class ShortMemory(Generic[Value]):
    """Entries by key, valid for `keep_s` seconds. Thread-safe, because each step is one operation of a dict."""

    def __init__(self, keep_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._monotonic = monotonic
        self._entries: dict[str, tuple[float, Value]] = {}

    def recall(self, key: str) -> Remembered[Value] | None:
        entry = self._entries.get(key)
        return None if entry is None or entry[0] <= self._monotonic() else Remembered(entry[1])

    def keep(self, key: str, value: Value) -> Value:
        if len(self._entries) >= MOST:
            self._entries.clear()
        self._entries[key] = (self._monotonic() + self._keep_s, value)
        return value

    def forget(self) -> None:
        self._entries.clear()
