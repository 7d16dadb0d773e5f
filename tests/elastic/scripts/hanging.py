"""Three steps, and then rank 1 of the first generation hangs, deaf to SIGTERM, while rank 0 waits for it.

The second generation ends well after its steps. Rank 0 says so by its phase, as one in a collective does.
"""

import json
import os
import signal
import time
from pathlib import Path

rank, generation = int(os.environ["RANK"]), int(os.environ["ORCHESTRATOR_GENERATION"])
journal = Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "progress.jsonl")
signal.signal(signal.SIGTERM, signal.SIG_IGN)


def tell(phase: str, step: int) -> None:
    line = {"at": "", "rank": rank, "generation": generation, "phase": phase, "step": step, "now": time.time()}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")


def hang() -> None:
    if rank == 0:
        tell("waiting", 3)
    time.sleep(600)


for step in range(1, 4):
    tell("step", step)
    time.sleep(0.02)
if generation == 1:
    hang()
tell("done", 4)  # whatever its end takes, it does not hang
