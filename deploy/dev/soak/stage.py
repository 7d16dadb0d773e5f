"""Two services on one PostgreSQL and one run directory, and four kinds of jobs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from deploy.dev.databases import find_lease_holder
from deploy.dev.postgres import Postgres
from deploy.dev.service import Answer, Marked, ServiceFailed, ThrowawayService, ask_any, processes_of
from orchestrator.client import Client
from orchestrator.store.upgrade import upgrade
from orchestrator.wire.job_views import JobView

LEASE_S = 3.0
_DISK = "700m"
KINDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "topology": {"workers_per_node": 2}},
    "fsdp": {"strategy": "fsdp", "topology": {"workers_per_node": 2}},
    "elastic": {"strategy": "ddp", "topology": {"nodes": "1:2", "workers_per_node": 1}},
    "single": {"strategy": "ddp", "topology": {"workers_per_node": 1}},
}


class Stage:
    """The services and jobs of a soak. `disk`: the run directory has its own small disk, which can be filled."""

    def __init__(self, folder: Path, server: Postgres, *, steps: int) -> None:
        self.root = folder / "runs"
        self.server = server
        self.disk = False
        self.jobs: dict[str, JobView] = {}  # as last seen
        self._steps = steps
        self._text = folder / "text.txt"
        settings = {
            "ORCHESTRATOR_DATABASE_URL": server.url,
            "ORCHESTRATOR_LEASE_S": str(LEASE_S),
            "ORCHESTRATOR_LOCAL_SLOTS": "7",
            "ORCHESTRATOR_POLL_S": "0.2",
            "ORCHESTRATOR_STOP_TIMEOUT_S": "3",
            "ORCHESTRATOR_RENDEZVOUS_PORTS": "[28000, 29999]",
        }
        self.services = [
            ThrowawayService(self.root, settings, name=name, log_folder=folder) for name in ("first", "second")
        ]
        self.down: set[int] = set()  # indexes of the services that are killed or stopped now
        self._submitted = 0

    @contextlib.contextmanager
    def set_up(self) -> Iterator[None]:
        self.root.mkdir(parents=True)
        self.disk = _mount(self.root)
        repository = Path(__file__).parents[3]
        self._text.write_text("".join(path.read_text() for path in sorted(repository.glob("orchestrator/*.py"))))
        upgrade(self.server.url)
        try:
            for service in self.services:
                service.start()
            yield
        finally:
            for service in self.services:
                service.wake()
                service.kill()
            self.services[0].end()

    def leave(self) -> None:
        """Unmount the disk."""
        if self.disk:
            subprocess.run(["umount", "-l", str(self.root)], check=False)

    def submit(self, kind: str) -> None:
        self._submitted += 1
        wanted = KINDS[kind]
        trainer = {
            "data": str(self._text),
            "steps": self._steps,
            "global_batch": 4,
            "micro_batch": 1,
            "seq_len": 16,
            "strategy": wanted["strategy"],
        }
        spec = {
            "name": f"{kind}-{self._submitted}",
            "run": {"trainer": trainer, "workdir": "/"},
            "topology": wanted["topology"],
            "snapshot": {"interval": "20", "keep": 2},
            "supervise": {
                "backoff_s": [0.2, 1],
                "budgets": dict.fromkeys(("application", "launch", "node", "hang", "storage")),
                "grow_back_after_s": 20,
            },
        }
        job = self.ask(lambda client: client.submit(spec, idempotency_key=f"{kind}-{self._submitted}"))
        self.jobs[job.id] = job

    def look(self) -> None:
        """Update `jobs`."""
        for job_id, job in self.jobs.items():
            if not job.ended:
                self.jobs[job_id] = self.ask(partial(Client.job, job_id=job_id))

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        return ask_any(lambda: (one.url for n, one in enumerate(self.services) if n not in self.down), question, 120)

    def revive(self, place: int) -> bool:
        """Start a killed service again. Returns False if it cannot start now."""
        try:
            self.services[place].start()
        except ServiceFailed:
            self.services[place].kill()
            return False
        self.down.discard(place)
        return True

    def holder(self) -> int | None:
        """Return the index of the service that holds the lease."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.server.url, connect_timeout=3) as connection:
            holder, pids = find_lease_holder(connection), [service.pid for service in self.services]
            return pids.index(holder) if holder in pids else None
        return None

    def processes(self) -> list[Marked]:
        return sorted(processes_of(self.root), key=lambda one: one.pid)

    def others_of(self, one: Marked) -> list[Marked]:
        """Return all processes of the same replica."""
        return [each for each in self.processes() if (each.job_id, each.replica) == (one.job_id, one.replica)]


def _mount(folder: Path) -> bool:
    """Mount a small disk on the folder. Returns whether that succeeded."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False
