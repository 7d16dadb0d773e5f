"""Numbers with their nouns, for messages. Pure."""

from __future__ import annotations


def counted(number: int | str, noun: str) -> str:
    """Render "1 node", "3 nodes", or "2:8 nodes" for a range. The noun must take an s."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"
