"""One command of a benchmark as a process of its own, and what it printed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.report.catalogue import Arguments
from benchmarks.report.cells import Document
from benchmarks.report.machine import ROOT

_LIMIT_S = 4 * 3600.0  # of one command; one that takes longer hangs
_GRACE_S = 60.0  # to end what it started


class BenchmarkBroke(Exception):
    """It ended without its JSON object, or did not end; the text says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A command that ended with its object. `command` is what a person would type; `kept`: no limit was missed."""

    command: str
    document: Document
    kept: bool


def run(name: str, arguments: Arguments) -> Measured:
    """Wait for `python -m benchmarks.NAME --json ...`; its stderr is shown as it comes. Raises BenchmarkBroke."""
    words = ["-m", f"benchmarks.{name}", "--json", *arguments]
    command = shlex.join(["python", *words])
    print(command, file=sys.stderr, flush=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BenchmarkBroke(f"{command} did not end within {_LIMIT_S:.0f} s") from None
    finally:
        _end(process)
    try:
        document = json.loads(printed)
    except ValueError:
        raise BenchmarkBroke(f"{command} ended with {process.returncode} and no JSON object") from None
    return Measured(command=command, document=document, kept=process.returncode == 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A notice, then SIGKILL, for the command and what shares its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
