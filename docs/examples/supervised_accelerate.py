"""A supervised Accelerate script: it continues from its newest state, also within an epoch."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from trainer.integrations.accelerate import Elastic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x = torch.randn(4096, 16)
    data = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    run = Elastic(accelerator, steps=epochs * len(data))
    step = run.restore()
    for epoch in range(step // len(data), epochs):
        data.set_epoch(epoch)
        for x, y in accelerator.skip_first_batches(data, step % len(data)):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.step(step, loss=loss)
            step += 1
    run.save()
    accelerator.end_training()


if __name__ == "__main__":
    main()
