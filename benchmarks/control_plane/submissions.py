"""Submissions: how many a second, and what the growing queue costs the supervisor."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.control_plane.load import Clients, render_post
from benchmarks.control_plane.stored import add_job, make_job, make_spec
from benchmarks.control_plane.world import Usage, memory, serve
from orchestrator.domain.job.job import JobState
from orchestrator.store.engine import Database

_LOOKS_S = 5.0
_DAY_S = 86_400.0


def measure_submissions(folder: Path, url: str, count: int) -> dict[str, object]:
    """Every job waits: one that is between two attempts holds a slot, and the first in the queue needs them all."""
    database = Database(url)
    now = datetime.now(UTC)
    patient = make_spec(supervise={"backoff_s": [_DAY_S, _DAY_S]})
    add_job(database, make_job("holder", patient, JobState.RECOVERING, now, retry_at=now + timedelta(seconds=_DAY_S)))
    wide = make_spec(topology={"workers_per_node": 1000})
    add_job(database, make_job("wide", wide, JobState.QUEUED, now))
    database.dispose()
    figures: dict[str, object] = {}
    with serve(folder, url) as service, Clients(service.url) as clients:
        clients.run(partial(_submissions, "warm", 50))
        for name, connections in (("sequential", 1), ("16 clients", 16)):
            usage, passes = Usage(service.pid), Passes(service.url)
            outcome = clients.run(partial(_submissions, name[:3].strip(), count), connections=connections)
            figures[name] = {**outcome.figures(), **usage.figures(), **passes.figures()}
        time.sleep(_LOOKS_S)  # what was submitted last is looked at
        usage, passes = Usage(service.pid), Passes(service.url)
        time.sleep(_LOOKS_S)
        figures["at rest"] = {"queued": 2 * count + 51, **usage.figures(), **passes.figures(), **memory(service.pid)}
    return figures


class Passes:
    """Passes of the supervisor since this was made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = self._read()

    def figures(self) -> dict[str, float | int]:
        seconds, count = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return {"passes": int(count), "pass_mean_s": round(seconds / count, 3) if count else 0.0}

    def _read(self) -> tuple[float, float]:
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        values = [
            sum(
                float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"orchestrator_pass_seconds_{what}")
            )
            for what in ("sum", "count")
        ]
        return values[0], values[1]


def _submissions(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        document = {
            "name": f"{prefix}-{number}",
            "project": "research",
            "run": {"command": ["python", "train.py", "--seed", str(number)], "workdir": "/", "env": {"A": "b"}},
            "topology": {"nodes": 1, "workers_per_node": 2},
            "labels": {"team": "research", "sweep": "s1"},
        }
        yield render_post("/api/v1/jobs", document)
