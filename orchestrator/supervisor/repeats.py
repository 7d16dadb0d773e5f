"""Logs a failure that repeats with every pass at once, then again after a minute, after two, four, ...

Only log lines are left out. What a job's owner reads is written in every pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

log = structlog.get_logger()

_FIRST, _LONGEST = timedelta(minutes=1), timedelta(hours=1)
_LULL = timedelta(minutes=5)  # without the failure; then it is a new one, unless its pause is longer
_MOST = 10_000  # failures remembered at a time
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class _Series:
    words: str
    next_at: datetime
    last_at: datetime
    pause: timedelta = _FIRST
    unlogged: int = 0  # since the last line


class Repeats:
    """The failures of one cluster. They are kept across leases, because an outage is. Used by one thread."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def warn(self, event: str, reason: str, now: datetime, *, exc_info: bool = False, **about: str) -> None:
        """Log the failure, unless the same one was logged about the same thing recently. Numbers in `reason` may
        differ."""
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
    """A clock that was set back begins anew."""
    return now < series.last_at or now - series.last_at > max(_LULL, series.pause)
