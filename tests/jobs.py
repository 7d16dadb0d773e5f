"""Small jobs for tests, and how to wait for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from orchestrator.client import Client
from orchestrator.wire.job_views import JobView


def python_job(code: str, *, workers: int = 1, **fields: Any) -> dict[str, Any]:
    """A job whose workers run a line of Python without torch, so that it starts quickly."""
    fields.setdefault("supervise", {"backoff_s": [0.1, 0.2]})
    run = {"command": [sys.executable, "-c", code], "workdir": "/"}
    return {"name": "small", "run": run, "topology": {"workers_per_node": workers}, **fields}


def training_job(
    *, nodes: str = "1", workers: int = 1, snapshot: dict[str, Any] | None = None, **trainer: Any
) -> dict[str, Any]:
    """A small training. By default it runs longer than any test and saves snapshots only on request."""
    config = {"steps": 100_000, "global_batch": 4, "micro_batch": 2, "seq_len": 16, "strategy": "ddp", **trainer}
    return {
        "name": "tiny",
        "run": {"trainer": config},
        "topology": {"nodes": nodes, "workers_per_node": workers},
        "snapshot": {"interval": "100000"} if snapshot is None else snapshot,
        "supervise": {"backoff_s": [0.1, 0.2]},
    }


def until(client: Client, job_id: str, holds: Callable[[JobView], bool], *, timeout_s: float = 300) -> JobView:
    """Wait until the condition holds. After the timeout, fail with the job's events."""
    deadline = time.monotonic() + timeout_s
    while True:
        job = client.job(job_id)
        if holds(job):
            return job
        if time.monotonic() > deadline:
            events = "\n".join(event.sentence for event in client.events(job_id))
            raise AssertionError(f"{job_id} is {job.state}: {job.reason}\n{events}")
        time.sleep(0.1)


def ended(job: JobView) -> bool:
    return job.ended


def running(job: JobView) -> bool:
    return job.state == "RUNNING"
