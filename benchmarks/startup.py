"""The service's idle memory and start time, and the start time of the command line.

    python -m benchmarks.startup [--runs N] [--json]

Each figure is the median of N runs, with the least and the greatest. The project promises the limits. A command that
asks the service is judged by its time over that of importing the libraries of the client, measured just before it:
docs/adr/0032-client-start-as-a-ratio.md.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from deploy.dev.service import ThrowawayService

LIMITS = {"idle_memory_mb": 150.0, "start_to_ready_s": 2.0, "help_s": 0.2, "ls_over_libraries": 2.0}
LIBRARIES = "typer, httpx, pydantic, rich.table"


class Start(NamedTuple):
    """What one start of the service and of the client took. Memory in MB, times in seconds."""

    idle_memory_mb: float
    start_to_ready_s: float
    help_s: float
    libraries_s: float
    ls_s: float

    @property
    def ls_over_libraries(self) -> float:
        return self.ls_s / self.libraries_s


def measure() -> Start:
    """Start the service and the client once. The memory is the resident one after 3 s of idling."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with ThrowawayService(Path(folder)) as service:
            with urllib.request.urlopen(f"{service.url}/readyz", timeout=10) as answer:
                assert answer.status == 200
            ready_s = time.perf_counter() - started
            time.sleep(3)
            status = Path(f"/proc/{service.pid}/status").read_text()
            resident_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
            client = (sys.executable, "-m", "orchestrator.cli")
            return Start(
                int(resident_kb) / 1024,
                ready_s,
                help_s=_time(*client, "--help"),
                libraries_s=_time(sys.executable, "-c", f"import {LIBRARIES}"),
                ls_s=_time(*client, "ls", env={**os.environ, "ORCHESTRATOR_URL": service.url}),
            )


def _time(*command: str, env: Mapping[str, str] | None = None) -> float:
    """Run a command to its end, and return the seconds that it took."""
    started = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    parser = build_parser("startup", __doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    begin()
    starts = [measure() for _ in range(options.runs)]
    figures: Figures = {}
    for name in (*Start._fields, "ls_over_libraries"):
        values = [getattr(start, name) for start in starts]
        spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        figures[name] = {**spread, "limit": LIMITS.get(name)}
    rows = [[name, *map(render_number, figure.values())] for name, figure in figures.items()]
    tables = render_table([f"n = {options.runs}", "median", "least", "greatest", "limit"], rows)
    kept = all(figures[name]["median"] <= limit for name, limit in LIMITS.items())
    return finish({"runs": options.runs, **figures}, tables, as_json=options.json, kept=kept)


if __name__ == "__main__":
    sys.exit(main())
