"""Describe the machine, and measure how fast it is now, to compare figures of different days.

python -m benchmarks.yardstick
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import random
import sqlite3
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = ("torch", "torchx", "fastapi", "pydantic", "sqlalchemy", "uvicorn")
_MEASURED = ("orchestrator", "trainer", "benchmarks")
_ADDITIONS = 5_000_000
_OBJECTS = 1_000_000


def measure() -> dict[str, float]:
    """Seconds of one core: `loop_s` for 5 million additions, `memory_s` for a million objects read in random order."""
    began = time.process_time()
    total = 0
    for number in range(_ADDITIONS):
        total += number
    loop_s = time.process_time() - began
    objects = [{"value": number} for number in range(_OBJECTS)]
    order = list(range(_OBJECTS))
    random.Random(0).shuffle(order)
    began = time.process_time()
    for index in order:
        total += objects[index]["value"]
    return {"loop_s": round(loop_s, 3), "memory_s": round(time.process_time() - began, 3)}


def describe() -> str:
    """One line: load, cores and speed of this machine now."""
    machine = {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count(), **measure()}
    return "  ".join(f"{name} {value}" for name, value in machine.items())


def describe_machine() -> str:
    """One line: processor, cores, memory, GPUs, system."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].partition(":")[2].strip() if models else platform.machine()
    cores = f"{os.cpu_count()} cores ({processor})"
    return ", ".join([cores, f"{memory_bytes / 1e9:.0f} GB", *list_gpus(), f"Linux {platform.release()}"])


def list_gpus() -> list[str]:
    """The names of the GPUs, from the driver. Empty without a driver."""
    return _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()


def describe_versions() -> str:
    """One line: this project's commit, Python, and the libraries that figures depend on."""
    changed = " with changes" if _ask("git", "status", "--porcelain", "--", *_MEASURED) else ""
    commit = f"commit {_ask('git', 'rev-parse', '--short', 'HEAD') or 'unknown'}{changed}"
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return ", ".join([commit, f"Python {platform.python_version()}", *versions, f"SQLite {sqlite3.sqlite_version}"])


def _ask(*command: str) -> str:
    """The output of a program in this checkout. Empty if it is missing or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    print(describe())
