"""What is measured on: a machine, a database of its own, a service process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from benchmarks import yardstick
from deploy.dev.databases import scratch_database
from deploy.dev.service import ThrowawayService
from orchestrator.store import schema
from orchestrator.store.engine import Database

_PACKAGES = ("fastapi", "pydantic", "sqlalchemy", "uvicorn", "psycopg")
_TICKS = os.sysconf("SC_CLK_TCK")


def describe_machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        **yardstick.measure(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "sqlite": sqlite3.sqlite_version,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


@contextmanager
def fresh_database(server: str | None, folder: Path) -> Iterator[str]:
    """The URL of a database with tables and nothing in them: on the server, or a file in the folder."""
    if server is None:
        url = f"sqlite:///{folder / 'orchestrator.db'}"
        schema.upgrade(url)
        yield url
        return
    with scratch_database(server) as url:
        schema.upgrade(url)
        yield url


def server_version(server: str) -> str:
    database = Database(server)
    try:
        with database.read() as session:
            return str(session.scalar(text("SHOW server_version")))
    finally:
        database.dispose()


def serve(folder: Path, url: str) -> ThrowawayService:
    return ThrowawayService(folder / "root", {"ORCHESTRATOR_DATABASE_URL": url, "ORCHESTRATOR_LOCAL_SLOTS": "1000"})


class Usage:
    """CPU seconds of a process since this was made, and its memory now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._wall, self._cpu = time.perf_counter(), self._cpu_s()

    def figures(self) -> dict[str, float]:
        cpu, wall = self._cpu_s() - self._cpu, time.perf_counter() - self._wall
        return {"service_cpu_s": round(cpu, 2), "service_cores": round(cpu / wall, 2)}

    def cpu_s(self) -> float:
        """Used since this was made."""
        return self._cpu_s() - self._cpu

    def _cpu_s(self) -> float:
        fields = (Path("/proc") / str(self._pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS  # utime, stime: proc(5), fields 14 and 15


def memory(pid: int) -> dict[str, float]:
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"rss_mb": round(kb["VmRSS"] / 1024, 1), "peak_mb": round(kb["VmHWM"] / 1024, 1)}
