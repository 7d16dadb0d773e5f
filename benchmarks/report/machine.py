"""What a measurement was taken on: the machine, the versions, the commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
from pathlib import Path

from benchmarks import yardstick

ROOT = Path(__file__).parents[2]
_PACKAGES = ("torch", "torchx", "fastapi", "pydantic", "sqlalchemy", "uvicorn")
_MEASURED = ("orchestrator", "trainer", "benchmarks")


def describe_machine() -> str:
    """One line: processor, cores, memory, GPUs, system."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    system = f"{platform.system()} {platform.release()}"
    parts = [f"{os.cpu_count()} cores ({_processor()})", f"{memory_bytes / 1e9:.0f} GB", *list_gpus(), system]
    return ", ".join(parts)


def list_gpus() -> list[str]:
    """The name of each, as the driver gives it; none where there is no driver."""
    told = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return [] if told is None else [line.strip() for line in told.splitlines() if line.strip()]


def describe_versions() -> str:
    """One line: this project's commit, Python, and the libraries that figures depend on."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return ", ".join(
        [describe_commit(), f"Python {platform.python_version()}", *versions, f"SQLite {sqlite3.sqlite_version}"]
    )


def describe_commit() -> str:
    """The commit of this checkout, and whether what is measured differs from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    if commit is None:
        return "no commit known"
    changed = _git("status", "--porcelain", "--", *_MEASURED)
    return f"commit {commit}{' with changes' if changed else ''}"


def describe_pace() -> str:
    """The yardstick's two figures, now."""
    pace = yardstick.measure()
    return f"yardstick {pace['loop_s']} s and {pace['memory_s']} s"


def read_load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 1)


def _processor() -> str:
    """As Linux names it, else by its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(*words: str) -> str | None:
    """What git prints; None where there is no git or no checkout."""
    return _ask("git", *words)


def _ask(*command: str) -> str | None:
    """What a program prints, in this checkout; None where it is missing or fails."""
    try:
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
