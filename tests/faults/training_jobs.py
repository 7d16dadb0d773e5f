"""Helpers of the tests of faults: the job, and waiting for its recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.client import Client
from orchestrator.wire.job_views import JobView
from tests.jobs import ended, until

PATIENCE_S = 420.0
FULL_S = 15.0
SNAPSHOT_STEPS = 25  # between two snapshots
SAVES = {"interval": str(SNAPSHOT_STEPS)}
_SCRIPT = Path(__file__).with_name("training.py")


def training(*, cluster: str = "local", nodes: int = 1, greed: str = "/nowhere", **fields: Any) -> dict[str, Any]:
    """Build a job of two workers with default settings, changed by `fields`."""
    run = {"script": str(_SCRIPT), "args": [greed], "workdir": str(_SCRIPT.parent)}
    topology = {"nodes": str(nodes), "workers_per_node": 2 // nodes}
    return {"name": "struck", "cluster": cluster, "run": run, "topology": topology, **fields}


def trains(client: Client, spec: dict[str, Any], *, steps: int = 20) -> JobView:
    """Submit the job and wait for `steps` steps, so that its step time is known."""
    job = client.submit(spec)
    seen = until(client, job.id, lambda seen: seen.ended or (seen.step or 0) >= steps, timeout_s=PATIENCE_S)
    assert not seen.ended, seen.reason
    return seen


def now() -> datetime:
    return datetime.now(UTC)


def goes_on(client: Client, job_id: str, injected_at: datetime) -> None:
    """Wait until workers have started after `injected_at` and the job runs, or has ended."""

    def holds(job: JobView) -> bool:
        started = any(event.kind == "generation.started" and event.at >= injected_at for event in client.events(job_id))
        return ended(job) or (job.state == "RUNNING" and started)

    until(client, job_id, holds, timeout_s=PATIENCE_S)


def over(client: Client, job_id: str, holds: Callable[[JobView], bool] = ended) -> None:
    until(client, job_id, holds, timeout_s=PATIENCE_S)


def fill_disk(client: Client, job_id: str, folder: Path) -> None:
    """Fill a disk until a snapshot of the job fails. Return after the next successful snapshot.

    Reports that could not be written arrive after the disk has space again.
    """
    while not (failed := _snapshots(client, job_id, "snapshot.failed")):
        ballast, enough = _fill(folder), (client.job(job_id).step or 0) + SNAPSHOT_STEPS
        wait_s(FULL_S)
        ballast.unlink()
        over(client, job_id, partial(_has_made, enough))
    over(client, job_id, lambda _: max(_snapshots(client, job_id, "snapshot.committed"), default=0) > max(failed))


def wait_s(seconds: float) -> None:
    """Wait while the fault lasts."""
    over_at = time.monotonic() + seconds
    while time.monotonic() < over_at:
        time.sleep(0.1)


def _has_made(steps: int, job: JobView) -> bool:
    return job.ended or (job.step or 0) > steps


def _snapshots(client: Client, job_id: str, kind: str) -> list[int]:
    """Return the steps in the events of this kind."""
    return [int(str(event.evidence["step"])) for event in client.events(job_id) if event.kind == kind]


def _fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def end(client: Client, job_id: str) -> None:
    if not client.job(job_id).ended:
        client.cancel(job_id)
        over(client, job_id)
