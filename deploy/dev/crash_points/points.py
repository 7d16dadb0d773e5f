"""Crash points: every commit, every call of the backend and every write to the run directory, wrapped and named.

No point is listed by hand. Commits are wrapped in SQLAlchemy's dialect, backend calls are the methods of the port, and
writes are the public functions of `rundir` that are not readers. A point's name has its thread, effect, calling
functions and job, so that the next run finds it again:

    supervisor: commit supervision.apply < act._start [one] #1

A periodic effect (observing, renewing the lease) counts once after each other point.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy.engine.default import DefaultDialect

from orchestrator import rundir
from orchestrator.bootstrap import machine
from orchestrator.ports.cluster import Backend

SIDES = ("before", "after")
_READERS = ("read_", "parse_", "open_", "split_", "was_", "incarnations")
_REPEATED = (
    "supervisor: commit leases.acquire",
    "supervisor: backend.observe",
    "supervisor: backend.slots",
    "lease: commit leases.renew",
)
_STORE, _NO_CALLERS = "orchestrator/store/", ("orchestrator/store/engine.py", "orchestrator/store/failures.py")
_DEPTH = 60  # frames searched for the caller
_CALLERS = 2  # callers in a name, besides the store's function


@dataclass(frozen=True)
class Injection:
    """The point and the signal that the process sends itself there. It writes `reported` just before."""

    point: str
    side: str
    signal: signal.Signals
    reported: Path


class Counting:
    """Counts the points, calls `tell` with each new one, and sends a signal at the chosen one."""

    def __init__(self, tell: Callable[[str], None], injection: Injection | None) -> None:
        self._tell = tell
        self._injection = injection
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._passed = ["the start"]
        self._seen: set[str] = set()

    def wrap(self, effect: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            point = self._enter(_name(effect, sys._getframe(1), args))
            self._pass(point, "before")
            try:
                return function(*args, **kwargs)
            finally:
                self._pass(point, "after")
                with self._lock:
                    if point is not None and " after " not in point:
                        self._passed.append(point)

        return wrapped

    def _enter(self, name: str) -> str | None:
        """Return the current point, or None for a repetition."""
        with self._lock:
            if name.startswith(_REPEATED):
                return self._repeated(name)
            self._counts[name] += 1
            point = f"{name} #{self._counts[name]}"
        self._tell(point)
        return point

    def _repeated(self, name: str) -> str | None:
        if self._injection is not None:
            # Other points may come between in this run, so the first repetition after the same point counts.
            wanted, _, behind = self._injection.point.partition(" after ")
            return self._injection.point if wanted == name and behind in self._passed else None
        point = f"{name} after {self._passed[-1]}"
        if point in self._seen:
            return None
        self._seen.add(point)
        self._tell(point)
        return point

    def _pass(self, point: str | None, side: str) -> None:
        injection = self._injection
        if injection is None or (point, side) != (injection.point, injection.side):
            return
        with self._lock:
            if injection.reported.exists():
                return
            injection.reported.write_text(f"{injection.signal.name} {side} {point}\n")
        os.kill(os.getpid(), injection.signal)


def install(counting: Counting) -> None:
    """Wrap all points of this process. Call once, before the service is built."""
    DefaultDialect.do_commit = counting.wrap("commit", DefaultDialect.do_commit)  # type: ignore[method-assign]
    for name, function in inspect.getmembers(rundir, inspect.isfunction):
        ours = function.__module__ == rundir.__name__ and not name.startswith("_")
        if ours and not name.startswith(_READERS):
            setattr(rundir, name, counting.wrap(f"rundir.{name}", function))
    build = machine.LocalBackend  # type: ignore[attr-defined]

    def build_wrapped(*args: Any, **kwargs: Any) -> Any:
        backend = build(*args, **kwargs)
        for name, _ in inspect.getmembers(Backend, inspect.isfunction):
            if not name.startswith("_"):
                setattr(backend, name, counting.wrap(f"backend.{name}", getattr(backend, name)))
        return backend

    machine.LocalBackend = build_wrapped  # type: ignore[assignment,attr-defined]


def _name(effect: str, frame: FrameType | None, args: tuple[Any, ...]) -> str:
    sites: list[str] = []
    job = next((found for arg in args if (found := _job_of(arg)) is not None), None)
    for _ in range(_DEPTH):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if "/orchestrator/" in file and not file.endswith(_NO_CALLERS):
            job = job or next((found for value in frame.f_locals.values() if (found := _job_of(value))), None)
            stored = any(_STORE in site for site in sites)
            if len(sites) - stored < _CALLERS and not (_STORE in file and (sites or frame.f_code.co_name[0] == "_")):
                sites.append(f"{file}:{frame.f_code.co_name}")
        frame = frame.f_back
    where = " < ".join(_short(site) for site in sites)
    return f"{_thread()}: {effect} {where}" + (f" [{job}]" if job else "")


def _short(site: str) -> str:
    file, _, function = site.rpartition(":")
    return f"{Path(file).stem}.{function}"


def _job_of(value: object) -> str | None:
    """Return the name of the job to which a situation, plan, job or attempt's key belongs."""
    for attribute in ("job", "key"):
        value = getattr(value, attribute, value)
    found = getattr(value, "job_id", None) or (getattr(value, "id", None) if hasattr(value, "spec") else None)
    return found.rpartition("-")[0] if isinstance(found, str) else None


def _thread() -> str:
    name = threading.current_thread().name
    kinds = {"MainThread": "main", "supervisor-": "supervisor", "lease-": "lease"}
    return next((kind for prefix, kind in kinds.items() if name.startswith(prefix)), "request")
