"""The service's idle memory and start time, and the start time of the command line.

    python -m benchmarks.startup [--runs N] [--json]

Each figure is the median of N runs, with the least and the greatest. The project promises the limits.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from deploy.dev.service import ThrowawayService

LIMITS = {"idle_memory_mb": 150.0, "start_to_ready_s": 2.0, "help_s": 0.3}


def measure_service() -> tuple[float, float]:
    """Resident memory (MB) after 3 s of idling, and seconds from exec to the first successful answer of /readyz."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with ThrowawayService(Path(folder)) as service:
            with urllib.request.urlopen(f"{service.url}/readyz", timeout=10) as answer:
                assert answer.status == 200
            ready_s = time.perf_counter() - started
            time.sleep(3)
            status = Path(f"/proc/{service.pid}/status").read_text()
            resident_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
            return int(resident_kb) / 1024, ready_s


def measure_help() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "orchestrator.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    parser = build_parser("startup", __doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    begin()
    memory_mb, ready_s = zip(*(measure_service() for _ in range(options.runs)), strict=True)
    help_s = tuple(measure_help() for _ in range(options.runs))
    figures: Figures = {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values), "limit": limit}
        for (name, limit), values in zip(LIMITS.items(), (memory_mb, ready_s, help_s), strict=True)
    }
    rows = [[name, *map(render_number, figure.values())] for name, figure in figures.items()]
    tables = render_table([f"n = {options.runs}", "median", "least", "greatest", "limit"], rows)
    kept = all(figure["median"] <= figure["limit"] for figure in figures.values())
    return finish({"runs": options.runs, **figures}, tables, as_json=options.json, kept=kept)


if __name__ == "__main__":
    sys.exit(main())
