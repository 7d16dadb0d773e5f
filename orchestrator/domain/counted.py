"""Numbers with their nouns, for sentences. Pure."""

from __future__ import annotations


def counted(number: int | str, noun: str) -> str:
    """As "1 node", "3 nodes", and "2:8 nodes" of a range; of nouns that take an s."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"
