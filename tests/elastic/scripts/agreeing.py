"""Report a step every 50 ms. After SIGTERM to one rank all ranks end with 143, that one 2 s after the others.

Ends with 0 once the file named by the first argument appears.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
rank, generation = int(os.environ["RANK"]), int(os.environ["ORCHESTRATOR_GENERATION"])
journal = Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "progress.jsonl")
agreed = Path(f"{sys.argv[1]}-stop-{generation}")
step = 0
while not Path(sys.argv[1]).exists():
    if received:
        agreed.touch()
        time.sleep(2)
    if agreed.exists():
        sys.exit(143)
    step += 1
    line = {"at": "", "rank": rank, "generation": generation, "phase": "step", "step": step}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")
    time.sleep(0.05)
