"""`python -m trainer.drill --kill-at STEP --config ...`: train as `python -m trainer` does, and die once on the way.

The last rank kills itself with SIGKILL, as a failing machine would, when it has made STEP steps: in the first
generation of the first attempt, and never again. `orchestrator drill` submits this beside an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.__main__ import leave
from trainer.__main__ import main as train
from trainer.contract import layout
from trainer.contract.env import WorkerPlace, parse_place

_LOOK_EVERY_S = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.drill", description=__doc__)
    parser.add_argument("--kill-at", type=int, required=True, metavar="STEP")
    options, rest = parser.parse_known_args(argv)
    place = parse_place(os.environ)
    if place.replica_dir is None:
        parser.error("a drill runs under elasticrun, as a job: nobody would restart a worker that dies here")
    if (place.attempt, place.generation, place.rank) == (1, 1, place.world_size - 1):
        journal = Path(place.replica_dir) / layout.PROGRESS
        threading.Thread(target=_die_at, args=(options.kill_at, place, journal), daemon=True).start()
    return train(rest)


def _die_at(step: int, place: WorkerPlace, journal: Path) -> None:
    """Wherever the main thread stands then: in a step, in a collective, in a save."""
    while _steps_made(place, journal) < step:
        time.sleep(_LOOK_EVERY_S)
    print(f"drill: rank {place.rank} kills itself after step {step}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _steps_made(place: WorkerPlace, journal: Path) -> int:
    """By this rank's own word, in the journal that it shares with the others of its node."""
    steps = 0
    for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else ():
        if line.endswith(b"\n"):
            told = json.loads(line)
            steps = max(steps, told.get("step") or 0) if told["rank"] == place.rank else steps
    return steps


if __name__ == "__main__":
    leave(main)
