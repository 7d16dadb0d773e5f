"""Plain DDP whose function can be entered again: when a worker is killed, the others keep their processes and states.

It differs from supervised_ddp.py in the two lines marked 1 and 2.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.supervised import Supervised, reenter  # 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    run = Supervised(steps=steps)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    state = run.restore(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in range(state.step, steps):
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step)).chunk(world_size)[rank]
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.step(step, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    reenter(main)  # 2
