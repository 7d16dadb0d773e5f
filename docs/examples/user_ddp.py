"""Plain DDP with its own snapshot: it runs unchanged under torchrun and elasticrun."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--snapshot", default="snapshot.pt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = 0
    if Path(args.snapshot).exists():
        saved = torch.load(args.snapshot, weights_only=True)
        model.load_state_dict(saved["model"])
        start = saved["step"]
    if rank == 0:
        print(f"start at step {start}", flush=True)
    for step in range(start, args.steps):
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step * dist.get_world_size() + rank))
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and ((step + 1) % 20 == 0 or step + 1 == args.steps):
            torch.save({"model": model.state_dict(), "step": step + 1}, f"{args.snapshot}.tmp")
            Path(f"{args.snapshot}.tmp").replace(args.snapshot)
            print(f"step {step + 1}/{args.steps} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
