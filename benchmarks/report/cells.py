"""Tables and cells of Markdown, for the sections of docs/benchmarks.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = dict[str, Any]  # JSON, whose shape is that of the benchmark named


def render_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [render_row(header), "|" + "---|" * len(header), *(render_row(cells) for cells in rows)]


def render_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def render_number(value: float | None) -> str:
    """Three digits that mean something; nothing for what is not known."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def render_seconds(value: float | None) -> str:
    return "" if value is None else f"{render_number(value)} s"


def render_share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def render_ratio(value: float | None, ours: float | None) -> str:
    """Nothing where one of them is not known, or ours is no time at all."""
    return f"{value / ours:.1f}" if value is not None and ours is not None and ours > 0 else ""


def render_counts(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
