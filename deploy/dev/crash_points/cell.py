"""Run one cell of the matrix: two services, three jobs, one signal at a crash point. `verdict` checks it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import psycopg

from deploy.dev.crash_points.launcher import Launch, launch, write_lean_python
from deploy.dev.crash_points.points import Injection
from deploy.dev.databases import find_lease_holder
from deploy.dev.service import Answer, ServiceFailed, ask_any, processes_of
from orchestrator.client import Client, RequestRefused

LEASE_S = 2.0
_POLL_S = 0.2
_PATIENCE_S = 60.0
_WATCHED_S = 2.5  # a woken service must not change anything for this long
# Files that a woken service may still write, because they do not affect an attempt that has ended: a refused agent's
# log, its launch policy, an older fence, a request to end.
_HARMLESS = ("*/agent.log", "*/launch.json", "*/fence/a*-g00000.json", "*/desired.json", "*.tmp")
_TURN = threading.Lock()  # multiprocessing reaps all children when one starts, which is not safe in several threads
ROUNDS = ("kill", "stop", "wake", "cancel")


@dataclass(frozen=True)
class Cell:
    """One crash point, the side of its effect, and the round:

    - kill: SIGKILL.
    - stop: SIGSTOP, then SIGCONT when all jobs have ended. The service must change nothing.
    - wake: SIGSTOP, then SIGCONT once the other service has the lease.
    - cancel: as stop, but the owner cancels all jobs in between.
    """

    point: str
    side: str
    round: str

    def __str__(self) -> str:
        return f"{self.round} {self.side} {self.point}"


@dataclass
class Outcome:
    """A cell's result. `problems` is empty if the run went as expected."""

    cancelled: bool = False  # whether the owner cancelled all jobs
    injected: bool = False
    jobs: dict[str, Any] = field(default_factory=dict)  # name -> view
    attempts: dict[str, list[Any]] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    starts: dict[str, list[str]] = field(default_factory=dict)  # name -> lines of "attempt rank"
    problems: list[str] = field(default_factory=list)


def preload() -> ForkServerContext:
    """Start a process that has imported all modules of a service. Each service is a fork of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deploy.dev.crash_points.launcher"])
    return context


def specs(starts: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs: one succeeds, two is cancelled while it runs, three loses its agent and needs a retry."""
    bodies = {
        "one": (2, "exec sleep 1"),
        "two": (1, "exec sleep 60"),
        "three": (1, 'if [ "$ORCHESTRATOR_ATTEMPT" = 1 ]; then sleep 0.3; kill -9 $PPID; sleep 9; fi; exec sleep 0.3'),
    }
    return {
        name: {
            "name": name,
            "run": {
                "command": ["sh", "-c", f'echo "$ORCHESTRATOR_ATTEMPT $RANK" >> {starts}/{name}; {body}'],
                "workdir": "/",
            },
            "topology": {"workers_per_node": workers},
            "supervise": {"backoff_s": [0.1, 0.1]},
        }
        for name, (workers, body) in bodies.items()
    }


class Play:
    """Runs one cell in its own folder. Without a cell it records the points of an undisturbed run."""

    def __init__(self, cell: Cell | None, folder: Path, database_url: str, context: ForkServerContext) -> None:
        self._cell = cell
        self._folder = folder
        self._url = database_url
        self._context = context
        self._root = folder / "runs"
        self._starts = folder / "starts"
        self._reported = folder / "injected"
        self._services: dict[str, ForkServerProcess] = {}
        self._woken = False
        self.outcome = Outcome()
        self.points = folder / "points"

    def run(self) -> Outcome:
        self._starts.mkdir(parents=True)
        self._root.mkdir()
        try:
            with psycopg.connect(self._url, autocommit=True) as self._sql:
                self._play()
                self._read_all()
                self._part()
        except Exception as error:  # any error fails this cell; the others continue
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._leave_nothing()
        self.outcome.injected = self._reported.exists()
        for file in self._starts.iterdir():
            self.outcome.starts[file.name] = file.read_text().splitlines()
        return self.outcome

    def _play(self) -> None:
        self._start("a")
        self._until("service a has the lease", lambda: self._struck or self._holder() == self._services["a"].pid)
        if self._cell is not None:
            self._start_second()
        ids = {name: self._ask(partial(Client.submit, spec=spec, idempotency_key=name)).id
               for name, spec in specs(self._starts).items()}  # fmt: skip
        self._ids = ids
        self._until("job two runs", lambda: (self._starts / "two").exists() or self._is_cancel_due)
        self._ask(lambda to: to.cancel(ids["two"]))
        self._until("all jobs ended", self._all_ended)
        if self._cell is None:
            self._start_second()  # only now, so that all points are those of the first service
        elif self._cell.round in ("stop", "cancel") and self._struck:
            self._wake_and_watch()

    def _start_second(self) -> None:
        self._start("b")
        self._until("service b answers", lambda: self._address("b"))

    @property
    def _is_cancel_due(self) -> bool:
        return self._cell is not None and self._cell.round == "cancel" and self._struck

    def _cancel_all(self) -> None:
        self.outcome.cancelled = True
        for job_id in self._ids.values():
            with contextlib.suppress(RequestRefused):  # the job has ended
                self._ask(partial(Client.cancel, job_id=job_id))

    def _start(self, name: str) -> None:
        settings = {
            "ORCHESTRATOR_ROOT": str(self._root),
            "ORCHESTRATOR_PORT": "0",
            "ORCHESTRATOR_DATABASE_URL": self._url + "&options=-c%20idle_in_transaction_session_timeout%3D1500",
            "ORCHESTRATOR_LEASE_S": str(LEASE_S),
            "ORCHESTRATOR_POLL_S": str(_POLL_S),
            "ORCHESTRATOR_STOP_TIMEOUT_S": "2",
            "ORCHESTRATOR_LOCAL_SLOTS": "8",
        }
        given = Launch(
            settings=settings,
            log=self._folder / f"{name}.log",
            points=self.points if name == "a" else None,
            injection=self._injection() if name == "a" else None,
            python=write_lean_python(self._folder),
        )
        process = self._context.Process(target=launch, args=(given,), name=f"service {name}")
        with _TURN:
            process.start()
        self._services[name] = process

    def _injection(self) -> Injection | None:
        if self._cell is None:
            return None
        number = signal.SIGKILL if self._cell.round == "kill" else signal.SIGSTOP
        return Injection(self._cell.point, self._cell.side, number, self._reported)

    @property
    def _struck(self) -> bool:
        return self._reported.exists()

    def _address(self, name: str) -> str | None:
        log = self._folder / f"{name}.log"
        found = re.search(r"orchestrator is at (\S+),", log.read_text()) if log.exists() else None
        return None if found is None else found[1]

    def _ask(self, question: Callable[[Client], Answer]) -> Answer:
        """Ask service a, or b if a does not answer."""
        return ask_any(self._awake, question, _PATIENCE_S)

    def _awake(self) -> Iterator[str]:
        for name in ("a", "b"):
            url = self._address(name)
            if url is not None and (name == "b" or self._woken or not self._struck):
                yield url

    def _all_ended(self) -> bool:
        if self._is_cancel_due and not self.outcome.cancelled:
            self._cancel_all()
        rows = self._sql.execute("SELECT state FROM jobs").fetchall()
        return len(rows) == len(self._ids) and all(row[0] in ("SUCCEEDED", "FAILED", "CANCELLED") for row in rows)

    def _wake_in_time(self) -> None:
        if self._cell is None or self._cell.round != "wake" or self._woken or not self._struck:
            return
        if "b" in self._services and self._holder() == self._services["b"].pid:
            self._wake()

    def _wake(self) -> None:
        self._woken = True
        pid = self._services["a"].pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)

    def _wake_and_watch(self) -> None:
        self._until("service b has the lease", lambda: self._holder() == self._services["b"].pid)
        self._until("no process of a job", lambda: not list(processes_of(self._root)))
        before = self._traces()
        self._wake()
        time.sleep(_WATCHED_S)
        after = self._traces()
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        self.outcome.problems += [
            f"the woken service changed {name}: {before.get(name)} -> {after.get(name)}" for name in sorted(changed)
        ]

    def _traces(self) -> Mapping[str, str]:
        """Return the rows of all tables except leases, and the content of the jobs' files."""
        names = self._sql.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        tables = [name for (name,) in names if name != "leases"]
        rows = {
            name: json.dumps(sorted(str(row) for row in self._sql.execute(f'SELECT * FROM "{name}"').fetchall()))
            for name in tables
        }
        files = {
            str(path.relative_to(self._root)): path.read_text(errors="replace")
            for path in self._root.glob("*/**/*")
            if path.is_file() and not any(path.match(pattern) for pattern in _HARMLESS)
        }
        return rows | files

    def _holder(self) -> int | None:
        return find_lease_holder(self._sql)

    def _read_all(self) -> None:
        url = self._address("b")
        assert url is not None
        with Client(url, timeout_s=30, patience_s=10) as client:
            for name, job_id in self._ids.items():
                self.outcome.jobs[name] = client.job(job_id)
                self.outcome.attempts[name] = list(client.attempts(job_id))
                self.outcome.events[name] = list(client.events(job_id))

    def _part(self) -> None:
        """Check that no process of a job is left and that both services end cleanly on SIGTERM."""
        self._until("no process of a job", lambda: not list(processes_of(self._root)))
        for name, process in self._services.items():
            if not _runs(process) and not self._killed(name):
                self.outcome.problems.append(f"service {name} exited unexpectedly with {process.exitcode}")
            process.terminate()
            deadline = time.monotonic() + _PATIENCE_S
            while _runs(process) and time.monotonic() < deadline:
                if name == "a" and self._struck and not self._woken and not self._killed(name):
                    self._until("service b has the lease", lambda: self._holder() == self._services["b"].pid)
                    self._wake()
                time.sleep(0.05)
            expected = -signal.SIGKILL if self._killed(name) else 0
            if process.exitcode != expected:
                self.outcome.problems.append(f"service {name} ended with {process.exitcode} on SIGTERM")

    def _killed(self, name: str) -> bool:
        return name == "a" and self._cell is not None and self._cell.round == "kill" and self._struck

    def _until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            ended = [name for name, process in self._services.items() if not _runs(process)]
            if ended and not self._struck:
                raise ServiceFailed(f"while waiting for: {what}: service {ended[0]} exited unexpectedly")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_PATIENCE_S:.0f} s: {what}")
            self._wake_in_time()
            time.sleep(0.05)

    def _leave_nothing(self) -> None:
        for process in self._services.values():
            while _runs(process):
                process.kill()
                time.sleep(0.05)
        for one in list(processes_of(self._root)):
            self.outcome.problems.append(f"process {one.pid} of {one.job_id} was left")
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)


def _runs(process: ForkServerProcess) -> bool:
    with _TURN:
        return process.is_alive()
