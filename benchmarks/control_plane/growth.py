"""A long history: what requests, upkeep, an upgrade and the memory of a service cost with many stored jobs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select

from benchmarks.control_plane.filling import LONG_JOB, fill
from benchmarks.control_plane.load import Request, drive, fresh_database, read_memory, serve
from benchmarks.frame import Figures, render_number
from deploy.dev.service import ThrowawayService
from orchestrator.bootstrap.clock import SystemClock
from orchestrator.domain.accounting.retention import DataKind, Retention
from orchestrator.store.engine import Database
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.retention_store import RetentionStore
from orchestrator.store.schema import list_versions
from orchestrator.store.tables import JobRow
from orchestrator.upkeep.housekeeping import Housekeeper

DURATION_COLUMNS = ("seconds", "n")
_PIECES = 20  # of retention
_DELETED = 1_000  # or a hundredth of the jobs
_OLD = datetime.now(UTC) - timedelta(days=300)
_PATHS = {
    "list": "/api/v1/jobs?limit=50",
    "list of failed jobs": "/api/v1/jobs?limit=50&state=FAILED",
    "list of a project": "/api/v1/jobs?limit=50&project=vision",
    "list by label": "/api/v1/jobs?limit=50&label=team=research",
    "search, found": "/api/v1/jobs?limit=50&q=train",
    "search, not found": "/api/v1/jobs?limit=50&q=zzzzzz",
    "show": f"/api/v1/jobs/{LONG_JOB}",
    "metrics of a long job": f"/api/v1/jobs/{LONG_JOB}/metrics",
    "events": f"/api/v1/jobs/{LONG_JOB}/events",
    "goodput of a long job": f"/api/v1/jobs/{LONG_JOB}/goodput",
    "clusters": "/api/v1/clusters",
    "/metrics": "/metrics",
    "page of the list": "/",
    "page of the clusters": "/clusters",
    "page of the fleet": "/fleet",
}


def measure_growth(folder: Path, server: str | None, jobs: int, metric_rows: int, reads: int) -> Figures:
    """Fill a database of the first version, upgrade it, and use it."""
    with fresh_database(server, folder, version=list_versions()[0]) as url:
        began = time.perf_counter()
        fill(url, jobs, metric_rows)
        durations = {"filled": _since(began, metric_rows), "db upgrade": _time(lambda: _upgrade(url))}
        began = time.perf_counter()
        with serve(folder, url) as service:
            durations["start of the service"] = _since(began)
            requests = {name: _measure(service, path, reads) for name, path in _PATHS.items()}
            memory = read_memory(service)
            durations["deletion of a long job"] = _time(lambda: _delete(service, [LONG_JOB]))
            old = _list_old(url, min(_DELETED, jobs // 100))
            durations["deletion of old jobs"] = _time(lambda: _delete(service, old), len(old))
        return {"durations": durations | _measure_upkeep(folder, url), "requests": requests, "memory": memory}


def _measure(service: ThrowawayService, path: str, reads: int) -> Figures:
    request = Request(path=path)
    drive(service.url, [request])
    return drive(service.url, [request] * reads)


def _upgrade(url: str) -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "db", "upgrade", "--database-url", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _delete(service: ThrowawayService, ids: list[str]) -> None:
    answers = drive(service.url, [Request(path=f"/api/v1/jobs/{one}", method="DELETE") for one in ids])
    assert answers["refused"] == 0, answers


def _list_old(url: str, count: int) -> list[str]:
    with Database(url) as database, database.read() as session:
        query = select(JobRow.id).where(JobRow.finished_at < _OLD).order_by(JobRow.finished_at).limit(count)
        return list(session.scalars(query))


def _measure_upkeep(folder: Path, url: str) -> Figures:
    """Pieces of retention with the default periods, as a pass does them, and a round of the outbox."""
    with Database(url) as database:
        keeper = Housekeeper("local", folder / "root", RetentionStore(database), SystemClock(), Retention())
        found = {f"{_PIECES} pieces of retention": _time(lambda: _tidy(keeper), _PIECES)}
        store = RetentionStore(database)
        other = _time(lambda: store.ended("other", DataKind.LOGS, before=_OLD, after=None, limit=200))
        outbox = OutboxStore(database)
        swept = _time(lambda: (outbox.oldest_due_s("none"), outbox.sweep(owed_s=86_400.0)))
        return {**found, "a look for ended jobs of another cluster": other, "a round of the outbox": swept}


def _tidy(keeper: Housekeeper) -> None:
    for _ in range(_PIECES):
        keeper.tidy()


def _time(work: Callable[[], object], count: int = 1) -> Figures:
    began = time.perf_counter()
    work()
    return _since(began, count)


def _since(began: float, count: int = 1) -> Figures:
    return {"seconds": round(time.perf_counter() - began, 3), "n": count}


def render_duration(name: str, taken: Figures) -> list[str]:
    """A row under DURATION_COLUMNS."""
    return [name, render_number(taken["seconds"], "s"), str(taken["n"])]
