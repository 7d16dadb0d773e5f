"""Limit the log lines of a failure that repeats in every pass: at once, then after 1, 2, 4, ... minutes.

Only log lines are limited. The reason that a job's owner reads is written in every pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

log = structlog.get_logger()

_FIRST, _LONGEST = timedelta(minutes=1), timedelta(hours=1)
_LULL = timedelta(minutes=5)  # a failure that did not occur for this long, or for its pause, counts as new
_MOST = 10_000  # failures remembered
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class _Series:
    words: str
    next_at: datetime
    last_at: datetime
    pause: timedelta = _FIRST
    unlogged: int = 0  # failures since the last line


class Repeats:
    """The failures of one cluster. They outlive a lease, because an outage does. Not thread-safe."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def warn(self, event: str, reason: str, now: datetime, *, exc_info: bool = False, **about: str) -> None:
        """Log the failure, unless it was logged recently with the same `about`. Numbers in `reason` may differ."""
        key, words = " ".join((event, *about.values())), _VARIABLE.sub("#", reason)
        series = self._series.get(key)
        if series is None or series.words != words or _is_new(series, now):
            if len(self._series) >= _MOST:
                self._series.clear()
            self._series[key] = _Series(words, next_at=now + _FIRST, last_at=now)
            log.warning(event, reason=reason, exc_info=exc_info, **about)
            return
        series.unlogged, series.last_at = series.unlogged + 1, now
        if now < series.next_at:
            return
        log.warning(event, reason=reason, times=series.unlogged, exc_info=exc_info, **about)
        series.pause = min(_LONGEST, 2 * series.pause)
        series.next_at, series.unlogged = now + series.pause, 0


def _is_new(series: _Series, now: datetime) -> bool:
    """Whether the failure counts as new. It also does after the clock was set back."""
    return now < series.last_at or now - series.last_at > max(_LULL, series.pause)
