"""A real service on a free port, and jobs whose workers are small programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.wire import JobView


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ThrowawayService]:
    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "4", "ORCHESTRATOR_POLL_S": "0.1", "ORCHESTRATOR_STOP_TIMEOUT_S": "2"}
    with ThrowawayService(tmp_path / "runs", settings) as running:
        yield running


@pytest.fixture
def client(service: ThrowawayService) -> Iterator[Client]:
    with Client(service.url) as connected:
        yield connected


def python_job(code: str, *, workers: int = 1, **fields: Any) -> dict[str, Any]:
    """A job whose workers run a line of Python: no torch, so that it starts as fast as its agent does."""
    fields.setdefault("supervise", {"backoff_s": [0.1, 0.2]})
    run = {"command": [sys.executable, "-c", code], "workdir": "/"}
    return {"name": "small", "run": run, "topology": {"workers_per_node": workers}, **fields}


def until(client: Client, job_id: str, holds: Callable[[JobView], bool], *, timeout_s: float = 60) -> JobView:
    """Wait until the job is as wanted; the failure says how it stood."""
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
    return job.state.terminal


def running(job: JobView) -> bool:
    return job.state == "RUNNING"
