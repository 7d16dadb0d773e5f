"""A training script that does not use this project. It has DDP, its own snapshot, and a line for each step."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SNAPSHOT_EVERY = 10


def main() -> None:
    steps, snapshot, device = int(sys.argv[1]), Path(sys.argv[2]), torch.device(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*blocks, torch.nn.Linear(128, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < steps:
        inputs = torch.randn(64, 128, generator=torch.Generator().manual_seed(step * 1000 + rank)).to(device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        value = loss.item()  # on a GPU, once the update is done
        print(f"{time.time():.6f} rank {rank} pid {os.getpid()} step {step} loss {value:.4f}", flush=True)
        if rank == 0 and step % SNAPSHOT_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{snapshot}.tmp")
            Path(f"{snapshot}.tmp").replace(snapshot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
