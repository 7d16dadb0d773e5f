"""A throw-away service with a run directory of its own, for the demo, the tests and the benchmarks. Linux."""

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

from orchestrator.client import Client, RequestRefused
from orchestrator.domain.errors import OrchestratorError
from trainer.contract import env

Answer = TypeVar("Answer")
_ANSWER_S = 4.0  # for one request, beyond which another service is asked
_ADDRESS = re.compile(rb"orchestrator is at (\S+), run directory")


class ServiceFailed(Exception):
    """The service did not come up; the text holds what it printed."""


@dataclass(frozen=True)
class Marked:
    """A process of a job in this service's run directory: an agent, its fork server, or (by its rank) a worker."""

    pid: int
    job_id: str
    replica: int
    local_rank: int | None
    is_agent: bool


class ThrowawayService:
    """`orchestrator serve` on a free loopback port. Leaving the context ends it and all of its jobs.

    Several on one root (and one PostgreSQL) need names of their own.
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
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self, *, timeout_s: float = 30) -> None:
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
        """The environment of the service, and of a client that is to find it."""
        return {
            **outer_environment(),
            "ORCHESTRATOR_ROOT": str(self.root),
            "ORCHESTRATOR_PORT": self._port,
            **self._settings,
        }

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: the service alone, its jobs go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: all of its threads stand still."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self) -> None:
        """Leave nothing running."""
        self.stop()
        for _ in range(50):
            processes = list(self.processes())
            if not processes:
                return
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)

    def processes(self) -> Iterator[Marked]:
        """Everything that runs for this service's jobs."""
        return processes_of(self.root)


def ask_any(find_urls: Callable[[], Iterable[str]], question: Callable[[Client], Answer], patience_s: float) -> Answer:
    """Of whichever service answers within four seconds. Raises RequestRefused at once, other trouble at last."""
    trouble: Exception = ServiceFailed("no service is up")
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        for url in find_urls():
            with Client(url, timeout_s=_ANSWER_S, patience_s=0) as client:
                try:
                    return question(client)
                except RequestRefused:
                    raise
                except OrchestratorError as error:
                    trouble = error
        time.sleep(0.1)
    raise trouble


def outer_environment() -> dict[str, str]:
    """This process's environment without anything of ours, for programs that must not take it for theirs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}


def processes_of(root: Path) -> Iterator[Marked]:
    """Everything that runs for the jobs of a run directory, found by its mark in the environment."""
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
