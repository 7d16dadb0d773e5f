"""A pass of the supervisor over 1,000 jobs on a Slurm that holds 50,000 of other people's.

    python -m benchmarks.slurm [--jobs N] [--foreign N] [--passes N] [--json]

Half of our jobs run on two nodes each, the others wait. Store (SQLite), run directories, policy and the parsing of what
Slurm's commands print are the service's own; `squeue` is a script that prints a file: only our own user's lines, as
slurmctld filters them, or all of them, as where the other jobs belong to the service's Unix user too. How long a real
slurmctld thinks is not in the figures. The limit is what the project promises.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from benchmarks.slurm.world import World
from orchestrator.collector import calm_collector

LIMIT_S = 1.0

Figures = dict[str, float | int]


def measure(world: World, passes: int) -> dict[str, Figures]:
    """Rows of the table. In each pass every running job is seen, and none changes its state."""
    for _ in range(3):  # what follows from the first sight is decided and written down
        world.reconciler.reconcile()
    rows = {
        "nobody wrote": _passes(world, passes),
        "a line from each rank": _passes(world, passes, before=world.write_lines),
        "of it, the cluster": _times(world.look, passes),
    }
    world.slurm.give_all_to_us()
    rows["all jobs are this user's"] = _passes(world, passes)
    return rows


def _passes(world: World, count: int, *, before: Callable[[], None] = lambda: None) -> Figures:
    world.slurm.calls()
    figures = _times(world.reconciler.reconcile, count, before=before)
    asked = Counter(call.split()[0] for call in world.slurm.calls())
    return {**figures, "listings": asked.pop("squeue", 0) / count, "other_calls": asked.total() / count}


def _times(act: Callable[[], object], count: int, *, before: Callable[[], None] = lambda: None) -> Figures:
    wall_s, cpu_s = [], []
    for _ in range(count):
        before()
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        wall_s.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
    spread = {"median_s": statistics.median(wall_s), "min_s": min(wall_s), "max_s": max(wall_s)}
    return {name: round(value, 3) for name, value in {**spread, "cpu_s": statistics.median(cpu_s)}.items()}


def render_rows(rows: dict[str, Figures]) -> Sequence[str]:
    lines = [f"{'pass':26}{'median':>8}{'least':>8}{'most':>8}{'CPU':>8}   listings  other calls"]
    for name, row in rows.items():
        times = "".join(f"{row[column]:8.3f}" for column in ("median_s", "min_s", "max_s", "cpu_s"))
        calls = f"{row['listings']:11g}{row['other_calls']:13g}" if "listings" in row else ""
        lines.append(f"{name:26}{times}{calls}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="ours")
    parser.add_argument("--foreign", type=int, default=50_000)
    parser.add_argument("--passes", type=int, default=7, help="of each row")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    calm_collector()  # as the service does
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), options.jobs, options.foreign) as world:
        rows = measure(world, options.passes)
    about = {"jobs": options.jobs, "foreign": options.foreign, "passes": options.passes, "limit_s": LIMIT_S}
    if options.json:
        print(json.dumps({**about, "load": load, "cores": os.cpu_count(), "rows": rows}))
    else:
        print(f"{options.jobs} jobs among {options.foreign}, n = {options.passes}, load {load}, {os.cpu_count()} cores")
        print("\n".join(render_rows(rows)))
    return 0 if all(row["median_s"] <= LIMIT_S for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
