"""Arithmetic of time intervals [begin, end]: how much they cover, and how much of one set another covers."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def merge(spans: Iterable[Span]) -> list[Span]:
    """Merge into sorted intervals that neither touch nor overlap."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > begin:
            merged.append((begin, end))
    return merged


def covered(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in merge(spans))


def uncovered(spans: Iterable[Span], by: Iterable[Span]) -> float:
    """How much of `spans` is outside every interval of `by`."""
    spans, by = list(spans), list(by)
    return covered([*spans, *by]) - covered(by)
