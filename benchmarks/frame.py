"""Shared by all benchmarks: options, output and table cells."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import sys
from collections.abc import Iterable, Sequence
from subprocess import DEVNULL, Popen
from typing import IO, Any

from benchmarks import yardstick

Figures = dict[str, Any]  # JSON; each benchmark has its own shape


def build_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with --json, which every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def begin() -> None:
    """Print the yardstick to stderr. From now on SIGTERM raises SystemExit, so that started processes end."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(yardstick.describe(), file=sys.stderr, flush=True)


def finish(figures: Figures, tables: Iterable[str], *, as_json: bool, kept: bool = True) -> int:
    """Print the figures or the tables, and return the exit status: 1 if a limit was missed."""
    print(json.dumps(figures) if as_json else "\n".join(tables), flush=True)
    return 0 if kept else 1


def render_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [_render_row(header), "|" + "---|" * len(header), *map(_render_row, rows)]


def _render_row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def render_number(value: float | None, unit: str = "") -> str:
    """Three significant digits. Empty for an unknown value."""
    if value is None:
        return ""
    text = f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} {unit}".rstrip()


def render_ratio(value: float | None, ours: float | None) -> str:
    """Empty if one of them is unknown, or if ours is 0."""
    return f"{value / ours:.1f}" if value is not None and ours is not None and ours > 0 else ""


def spread(times: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median, 95th percentile by nearest rank, maximum. None without times."""
    ordered = sorted(times)
    if not ordered:
        return None, None, None
    return statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1]


def start_ranks(
    command: Sequence[str], count: int, device: str, log: IO[bytes] | None, **more: str
) -> list[Popen[bytes]]:
    """Start the ranks of one machine, like a launcher. On CPUs each has one thread and sees no GPU."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), **more}
    if device == "cpu":
        shared |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    places = [{**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [Popen(command, env=place, stdout=log or DEVNULL, stderr=log) for place in places]
