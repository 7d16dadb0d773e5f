"""A supervised script without torch: each rank counts, and saves its count to its own file."""

import json
import os
import sys

from trainer.supervised import Supervised

rank, steps, failure = os.environ["RANK"], int(sys.argv[1]), sys.argv[2:4]
run = Supervised(interval="3", steps=steps)
folder = run.latest()
start = 0 if folder is None else json.loads((folder / "rank-0.json").read_text())
for step in range(start, steps):
    run.step(step, loss=1 / (step + 1))
    if run.should_save:
        with run.slot() as folder:
            (folder / f"rank-{rank}.json").write_text(json.dumps(step + 1))
            if failure == ["fail", rank]:
                raise RuntimeError("the disk is in the way")
print("from", start, "saved", run.saved_step, "torch" in sys.modules)
