"""The training of user_script.py as a supervised script. With a third argument its function can be entered again."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.supervised import Supervised, reenter

SNAPSHOT_EVERY = "10"  # steps


def main() -> None:
    steps, device = int(sys.argv[1]), torch.device(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*blocks, torch.nn.Linear(128, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = Supervised(interval=SNAPSHOT_EVERY)
    state = run.restore(model=model, optimizer=optimizer)
    for step in range(state.step, steps):
        inputs = torch.randn(64, 128, generator=torch.Generator().manual_seed(step * 1000 + rank)).to(device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(step, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[3:]:
        reenter(main)
    else:
        main()
