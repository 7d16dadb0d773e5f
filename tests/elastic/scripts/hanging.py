"""Three steps. Then rank 1 of the first generation hangs and ignores SIGTERM, while rank 0 reports that it waits.

The second generation ends with success after its steps.
"""

import json
import os
import signal
import time
from pathlib import Path

rank, generation = int(os.environ["RANK"]), int(os.environ["ORCHESTRATOR_GENERATION"])
journal = Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "progress.jsonl")
signal.signal(signal.SIGTERM, signal.SIG_IGN)


def report(phase: str, step: int) -> None:
    line = {"at": "", "rank": rank, "generation": generation, "phase": phase, "step": step}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")


def hang() -> None:
    if rank == 0:
        report("waiting", 3)
    time.sleep(600)


for step in range(1, 4):
    report("step", step)
    time.sleep(0.02)
if generation == 1:
    hang()
report("done", 4)  # a slow end does not count as a hang
