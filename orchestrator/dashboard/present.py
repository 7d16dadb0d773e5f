"""Values in words for the pages: times, durations, sizes, numbers."""

from __future__ import annotations

from datetime import datetime

ABSENT = "–"


def show_duration(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ABSENT
    seconds = (now - moment).total_seconds()
    if seconds < 5:
        return "just now"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds // 86400)} d ago"


def show_time(moment: datetime | None) -> str:
    return ABSENT if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def show_clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"


def show_bytes(size: float | None) -> str:
    if size is None:
        return ABSENT
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return ABSENT


def show_number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def show_text(value: object) -> str:
    return ABSENT if value is None or value == "" else str(value)
