"""Times on the wire: aware UTC, RFC 3339 with microseconds."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache


def render_time(moment: datetime) -> str:
    """Render an aware time as RFC 3339 in UTC, always with microseconds so that texts sort as times do."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


@lru_cache(maxsize=256)
def parse_time(text: str) -> datetime:
    """Parse what `render_time` wrote. Raises ValueError for anything else, naive times included.

    Cached, because intake parses the time of a line again for each row and each document that it makes of the line.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"time {text!r} is not between the years 1 and 9999 in UTC") from None
