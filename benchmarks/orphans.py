"""What is alive a second after an agent got SIGKILL: workers, their data loaders, a daemon that left its session.

    python -m benchmarks.orphans [--kills N] [--json]

Each time an agent with two workers is started in a folder of its own and killed once both have had a batch. Exits with
1 when anything was alive after a second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import yardstick
from deploy.dev.service import outer_environment
from trainer.elastic.health.processes import is_gone

_ALLOWED_S, _PATIENCE_S = 1.0, 60.0
_MARK = "ORPHANS_BENCHMARK"
_SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
loader = DataLoader(torch.arange(10**6).float(), batch_size=8, num_workers=2)
for batch in loader:
    Path(os.environ["ORPHANS_BENCHMARK"], os.environ["RANK"]).touch()
    time.sleep(0.05)
"""


def strike(folder: Path) -> tuple[int, float]:
    """Start an agent, kill it; how many processes it had, and the seconds until all were gone (inf: not in time)."""
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, "-m", "trainer.elastic.elasticrun", "--standalone", "--nproc-per-node=2", str(script)]
    with (folder / "printed").open("wb") as printed:
        environ = outer_environment() | {_MARK: str(folder)}
        agent = subprocess.Popen(command, env=environ, stdout=printed, stderr=printed)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not all((folder / rank).exists() for rank in "01"):
            if time.monotonic() > deadline:
                raise SystemExit((folder / "printed").read_text())
            time.sleep(0.01)
        marked = find_marked(folder)
        agent.kill()
        killed_at = time.monotonic()
        agent.wait()
        while time.monotonic() < killed_at + _ALLOWED_S:
            if all(is_gone(pid) for pid in marked) and not find_marked(folder):
                return len(marked) - 1, time.monotonic() - killed_at
            time.sleep(0.002)
        return len(marked) - 1, float("inf")
    finally:
        for pid in find_marked(folder):
            os.kill(pid, 9)


def find_marked(folder: Path) -> list[int]:
    """The processes that were started in this folder and have not ended."""
    mark = f"{_MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marked and not is_gone(int(entry.name)):
                found.append(int(entry.name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with us
    print(yardstick.describe(), file=sys.stderr if options.json else sys.stdout, flush=True)
    times, counts = [], []
    for _ in range(options.kills):
        with tempfile.TemporaryDirectory() as folder:
            count, seconds = strike(Path(folder).resolve())
        counts.append(count)
        times.append(seconds)
    late = sum(seconds == float("inf") for seconds in times)
    figures = {
        "kills": options.kills,
        "left_nothing": options.kills - late,
        "allowed_s": _ALLOWED_S,
        "processes": [min(counts), max(counts)],
        # no number where something stayed: JSON has none for "never"
        "gone_p50_s": statistics.median(times) if math.isfinite(statistics.median(times)) else None,
        "gone_max_s": max(times) if not late else None,
    }
    print(json.dumps(figures) if options.json else _sentence(figures, times))
    return 1 if late else 0


def _sentence(figures: dict[str, object], times: list[float]) -> str:
    return (
        f"{figures['left_nothing']} of {figures['kills']} kills left nothing alive after {_ALLOWED_S:g} s; "
        f"processes below the agent: {figures['processes']}; "
        f"all gone after {statistics.median(times):.3f} s (median), {max(times):.3f} s (longest)"
    )


if __name__ == "__main__":
    sys.exit(main())
