"""A supervised script with a sampler: each rank writes its samples to a file."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from trainer.script.sampler import ElasticSampler
from trainer.supervised import Supervised

options = json.loads(sys.argv[sys.argv.index("--config") + 1])
dist.init_process_group("gloo")
dataset = TensorDataset(torch.arange(40))
model = torch.nn.Linear(1, 1)
run = Supervised(interval="1000")
sampler = ElasticSampler(dataset, batch_size=2)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
step = run.restore(model=model, sampler=sampler).step
with Path(f"samples-{dist.get_rank()}.jsonl").open("a") as file:
    while sampler.epoch < options["epochs"]:
        for (indices,) in loader:
            line = {"epoch": sampler.epoch, "ranks": dist.get_world_size(), "indices": indices.tolist()}
            file.write(json.dumps(line) + "\n")
            file.flush()
            if step + 1 == options["stop_at"]:
                os.kill(os.getpid(), signal.SIGTERM)
            run.step(step)
            step += 1
dist.destroy_process_group()
