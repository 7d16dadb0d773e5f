"""Run a service in this process and record its crash points."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.crash_points.points import Counting, Injection, install
from orchestrator import process
from orchestrator.bootstrap import machine
from orchestrator.domain.job.launch_plan import Site
from orchestrator.settings import Settings, load_settings

LEAN = Path(__file__).with_name("lean_agent.py")


@dataclass(frozen=True)
class Launch:
    """One service. Its crash points are written to `points`. If that is None, the service is not wrapped."""

    settings: Mapping[str, str]
    log: Path
    points: Path | None = None
    injection: Injection | None = None
    python: Path | None = None  # replaces the interpreter that starts agents


def launch(given: Launch) -> None:
    """The body of a child process: serve until SIGTERM."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        del os.environ[name]
    os.environ.update(given.settings)
    if given.python is not None:
        _start_agents_with(str(given.python))
    if given.points is not None:
        install(Counting(_teller(given.points), given.injection))
    process.serve(load_settings())
    sys.stdout.flush()


def write_lean_python(folder: Path) -> Path:
    """Write a program that takes the interpreter's arguments and runs the agent without torch."""
    program = folder / "python-lean"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {LEAN} "$@"\n')
    program.chmod(0o755)
    return program


def _start_agents_with(python: str) -> None:
    build = machine.build_site

    def build_site(settings: Settings, gpus: int) -> Site:
        site = build(settings, gpus)
        return type(site)(**{name: getattr(site, name) for name in site.__slots__} | {"python": python})

    machine.build_site = build_site


def _teller(path: Path) -> Callable[[str], None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def tell(point: str) -> None:
        os.write(descriptor, f"{point}\n".encode())

    return tell
