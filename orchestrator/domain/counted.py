"""Numbers with their nouns and units, for sentences. Pure."""

from __future__ import annotations


def counted(number: int | str, noun: str) -> str:
    """Render "1 node", "3 nodes", or "2:8 nodes" for a range. The noun must take an s."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def lasting(seconds: float) -> str:
    """Render "90 s", "14 min" or "3 h", rounded down, in the largest unit of which there are at least two."""
    whole = max(0, int(seconds))
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if whole >= 2 * unit_s:
            return f"{whole // unit_s} {unit}"
    return f"{whole} s"


def sized(size_bytes: float) -> str:
    """Render "512 B" or "3.84 GB": three digits, in the largest unit of which there is at least one."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:  # it is not rounded up to 1000
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"
