"""How light the service is: idle memory, start to ready, and the command line's first word.

    python -m benchmarks.startup [--runs N] [--json]

Each figure is the median of N runs, beside the least and the greatest and the machine's load; the limits are what the
project promises.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from deploy.dev.service import ThrowawayService

LIMITS = {"idle_memory_mb": 150.0, "start_to_ready_s": 2.0, "help_s": 0.3}


def measure_service() -> tuple[float, float]:
    """Seconds from exec to the first good answer of /readyz, and its resident memory (MB) after 3 s of idling."""
    with tempfile.TemporaryDirectory() as folder:
        service = ThrowawayService(Path(folder))
        started = time.perf_counter()
        service.start()
        try:
            with urllib.request.urlopen(f"{service.url}/readyz", timeout=10) as answer:
                assert answer.status == 200
            ready_s = time.perf_counter() - started
            time.sleep(3)
            status = (Path("/proc") / str(service.pid) / "status").read_text()
            resident_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
            return ready_s, int(resident_kb) / 1024
        finally:
            service.end()


def measure_help() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "orchestrator.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with us
    services = [measure_service() for _ in range(options.runs)]
    samples = {
        "idle_memory_mb": [memory for _, memory in services],
        "start_to_ready_s": [ready for ready, _ in services],
        "help_s": [measure_help() for _ in range(options.runs)],
    }
    figures = {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values), "limit": LIMITS[name]}
        for name, values in samples.items()
    }
    if options.json:
        print(json.dumps({"runs": options.runs, "load": os.getloadavg()[0], **figures}))
    else:
        print(f"n = {options.runs}, load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        for name, figure in figures.items():
            spread = f"({figure['min']:.3f} .. {figure['max']:.3f})"
            print(f"{name:18} {figure['median']:8.3f}  {spread:22} limit {figure['limit']}")
    return 0 if all(figure["median"] <= figure["limit"] for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
