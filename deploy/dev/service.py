"""A throw-away service with its own run directory, for the demo, tests and benchmarks. Linux."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from deploy.dev.killing import kill_at_once
from orchestrator.client import Client, RequestRefused
from orchestrator.domain.errors import OrchestratorError
from trainer.contract import env

Answer = TypeVar("Answer")
_ANSWER_S = 4.0  # time for one request, after which another service is tried
_ADDRESS = re.compile(rb"orchestrator is at (\S+), run directory")


class ServiceFailed(Exception):
    """The service did not start. The message contains its output."""


@dataclass(frozen=True)
class Marked:
    """A process of a job of this service: an agent, its fork server, or (with a rank) a worker."""

    pid: int
    job_id: str
    replica: int
    local_rank: int | None
    is_agent: bool


class ThrowawayService:
    """`orchestrator serve` on a free loopback port. Leaving the context ends it and all its jobs.

    Several services on one root (and one PostgreSQL) need different names.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "service",
        log_folder: Path | None = None,
    ) -> None:
        self.root = root.resolve()
        self.url = ""
        self._log = (log_folder or self.root) / f"{name}.log"
        self._settings = dict(settings or {})
        self._port = self._settings.pop("ORCHESTRATOR_PORT", "0")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ThrowawayService:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Raises ServiceFailed if it was never started."""
        if self._process is None:
            raise ServiceFailed("not started")
        return self._process.pid

    def start(self, *, timeout_s: float = 180) -> None:
        """Start the service and wait until it is ready. Raises ServiceFailed."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", "serve"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            found = _ADDRESS.search(self._log.read_bytes()[before:])
            if found is not None:
                self.url = found[1].decode()
                self._port = self.url.rpartition(":")[2]  # a restart keeps the address
                return
            time.sleep(0.02)
        raise ServiceFailed(self.printed())

    def environment(self) -> dict[str, str]:
        """Return the environment of the service, with which a client also finds it."""
        return {
            **outer_environment(),
            "ORCHESTRATOR_ROOT": str(self.root),
            "ORCHESTRATOR_PORT": self._port,
            **self._settings,
        }

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the service. Its jobs continue."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop all its threads with SIGSTOP."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue its threads with SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Terminate the service with SIGTERM. Returns the exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self) -> None:
        """End the service and all processes of its jobs."""
        self.stop()
        for _ in range(50):
            processes = list(self.processes())
            if not processes:
                return
            kill_at_once(process.pid for process in processes)
            time.sleep(0.1)

    def processes(self) -> Iterator[Marked]:
        """Yield the processes of this service's jobs."""
        return processes_of(self.root)


def ask_any(find_urls: Callable[[], Iterable[str]], question: Callable[[Client], Answer], patience_s: float) -> Answer:
    """Ask the first service that answers in four seconds. Retry for `patience_s`. Raises RequestRefused at once."""
    last: Exception = ServiceFailed("no service is running")
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        for url in find_urls():
            with Client(url, timeout_s=_ANSWER_S, patience_s=0) as client:
                try:
                    return question(client)
                except RequestRefused:
                    raise
                except OrchestratorError as error:
                    last = error
        time.sleep(0.1)
    raise last


def outer_environment() -> dict[str, str]:
    """Return this process's environment without ORCHESTRATOR_* variables, for programs that set their own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}


def processes_of(root: Path) -> Iterator[Marked]:
    """Yield the processes of the jobs in a run directory. They are found by their environment."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            folder = Path(variables.get(env.JOB_DIR, "/"))
            if folder.parent == root:
                rank = variables.get("LOCAL_RANK")
                yield Marked(
                    pid=int(entry.name),
                    job_id=folder.name,
                    replica=int(variables.get(env.REPLICA, "0")),
                    local_rank=None if rank is None else int(rank),
                    is_agent=rank is None and env.FORK_SERVER not in variables,
                )
