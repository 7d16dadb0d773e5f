"""An endless training script with five steps a second. Each step has an all-reduce.

If the file named by the first argument exists, the last rank deletes it and runs out of memory.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.supervised import Supervised


def main() -> None:
    dist.init_process_group("gloo")
    last, greed = dist.get_rank() == dist.get_world_size() - 1, Path(sys.argv[1])
    run = Supervised()
    model = torch.nn.Linear(64, 64)
    state = run.restore(model=model)
    for step in range(state.step, 1_000_000):
        dist.all_reduce(model.weight.data)
        model.weight.data /= dist.get_world_size()
        if last and greed.exists():
            greed.unlink()
            bytearray(1 << 62)
        time.sleep(0.2)
        run.step(step, loss=1.0)


if __name__ == "__main__":
    main()
