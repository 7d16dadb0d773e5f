"""The stage of the soak: two services on one PostgreSQL and one run directory, and four kinds of jobs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from deploy.dev.postgres import Postgres
from deploy.dev.service import Marked, ServiceFailed, ThrowawayService, processes_of
from orchestrator.client import Client, RequestRefused
from orchestrator.domain.errors import OrchestratorError
from orchestrator.store import schema
from orchestrator.wire.job_views import JobView

Answer = TypeVar("Answer")
LEASE_S = 3.0
_DISK = "700m"
_ANSWER_S = 10.0
KINDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "topology": {"workers_per_node": 2}},
    "fsdp": {"strategy": "fsdp", "topology": {"workers_per_node": 2}},
    "elastic": {"strategy": "ddp", "topology": {"nodes": "1:2", "workers_per_node": 1}},
    "single": {"strategy": "ddp", "topology": {"workers_per_node": 1}},
}


class Stage:
    """`disk` says whether the run directory has a small disk of its own, which can be filled."""

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
        self.down: set[int] = set()  # services that are killed or stopped now, by place
        self._submitted = 0

    @contextlib.contextmanager
    def set_up(self) -> Iterator[None]:
        self.root.mkdir(parents=True)
        self.disk = _mount(self.root)
        repository = Path(__file__).parents[3]
        self._text.write_text("".join(path.read_text() for path in sorted(repository.glob("orchestrator/*.py"))))
        schema.upgrade(self.server.url)
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
        """Give the disk back."""
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
        """See how the jobs stand."""
        for job_id, job in self.jobs.items():
            if not job.ended:
                self.jobs[job_id] = self.ask(partial(Client.job, job_id=job_id))

    def ask(self, question: Callable[[Client], Answer], *, tries: int = 30) -> Answer:
        """Of whichever service answers. Raises the last trouble."""
        trouble: OrchestratorError | None = None
        for number in range(tries * len(self.services)):
            place = number % len(self.services)
            if place in self.down:
                continue
            with Client(self.services[place].url, timeout_s=_ANSWER_S, patience_s=1) as client:
                try:
                    return question(client)
                except RequestRefused:
                    raise
                except OrchestratorError as error:
                    trouble = error
        raise trouble or ServiceFailed("no service is up")

    def revive(self, place: int) -> bool:
        """Start a killed service again; False where it cannot start now."""
        try:
            self.services[place].start()
        except ServiceFailed:
            self.services[place].kill()
            return False
        self.down.discard(place)
        return True

    def holder(self) -> int | None:
        """The place of the service that holds the lease."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.server.url, connect_timeout=3) as connection:
            row = connection.execute("SELECT holder FROM leases WHERE expires_at > clock_timestamp()").fetchone()
            pids = [service.pid for service in self.services]
            if row is not None and int(row[0].split(":")[1]) in pids:
                return pids.index(int(row[0].split(":")[1]))
        return None

    def processes(self) -> list[Marked]:
        return sorted(processes_of(self.root), key=lambda one: one.pid)

    def others_of(self, one: Marked) -> list[Marked]:
        """Everything of the same replica."""
        return [each for each in self.processes() if (each.job_id, each.replica) == (one.job_id, one.replica)]


def _mount(folder: Path) -> bool:
    """Whether the folder has a small disk of its own now."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False
