"""`python -m trainer.checks.drill --kill-at STEP --config ...`: train like `python -m trainer`, and kill one rank once.

After STEP steps the last rank kills itself with SIGKILL. It does so only in the first generation of the first attempt.
With `--hold-at STEP` it waits there instead, for at most a minute, until a fault is requested of the job. So the fault
occurs at a known step, however fast training is. `orchestrator drill` submits this beside an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer.__main__ import leave
from trainer.__main__ import main as train
from trainer.contract import layout
from trainer.contract.chaos import Fault
from trainer.contract.env import WorkerPlace, parse_place
from trainer.contract.launch import DesiredState, parse_desired
from trainer.worker.snapshot_requests import desired_of

_LOOK_EVERY_S, _PATIENCE_S = 0.02, 60.0
_HOLD = signal.SIGRTMAX - 4  # used by nothing else, like the signal for stacks


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.checks.drill", description=__doc__)
    at = parser.add_mutually_exclusive_group(required=True)
    at.add_argument("--kill-at", type=int, metavar="STEP")
    at.add_argument("--hold-at", type=int, metavar="STEP")
    options, rest = parser.parse_known_args(argv)
    place = parse_place(os.environ)
    if place.replica_dir is None:
        parser.error("a drill must run as a job under elasticrun, which restarts the killed worker")
    if (place.attempt, place.generation, place.rank) == (1, 1, place.world_size - 1):
        journal = Path(place.replica_dir) / layout.PROGRESS
        act, step = (_die_at, options.kill_at) if options.hold_at is None else (_hold_at, options.hold_at)
        if options.hold_at is not None:
            signal.signal(_HOLD, lambda number, frame: _await_fault(place))
        threading.Thread(target=act, args=(step, place, journal), daemon=True).start()
    return train(rest)


def _die_at(step: int, place: WorkerPlace, journal: Path) -> None:
    """Kill this process, whatever its main thread does at that time."""
    while _completed_steps(place, journal) < step:
        time.sleep(_LOOK_EVERY_S)
    print(f"drill: rank {place.rank} kills itself after step {step}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _hold_at(step: int, place: WorkerPlace, journal: Path) -> None:
    while _completed_steps(place, journal) < step:
        time.sleep(_LOOK_EVERY_S)
    print(f"drill: rank {place.rank} waits after step {step} for a fault", flush=True)
    signal.pthread_kill(threading.main_thread().ident or 0, _HOLD)


def _await_fault(place: WorkerPlace) -> None:
    """Block the main thread until a fault is requested. After damage to a snapshot, wait on: a kill follows."""
    path, deadline = desired_of(place), time.monotonic() + _PATIENCE_S
    while path is not None and time.monotonic() < deadline:
        with suppress(OSError, ValueError, RecursionError):
            document = json.loads(path.read_bytes())
            requested = parse_desired(document if isinstance(document, dict) else {})
            if requested.state is DesiredState.STOP:
                return
            if requested.chaos is not None and requested.chaos.fault is not Fault.CORRUPT_SNAPSHOT:
                return
        time.sleep(_LOOK_EVERY_S)


def _completed_steps(place: WorkerPlace, journal: Path) -> int:
    """The completed steps of this rank, from the journal that it shares with the other ranks of its node."""
    steps = 0
    for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else ():
        if line.endswith(b"\n"):
            document = json.loads(line)
            steps = max(steps, document.get("step") or 0) if document["rank"] == place.rank else steps
    return steps


if __name__ == "__main__":
    leave(main)
