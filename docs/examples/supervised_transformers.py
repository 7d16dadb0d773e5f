"""A supervised script with Hugging Face's Trainer: it continues from its newest checkpoint."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from trainer.integrations.transformers import Elastic


class Sums(Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum(dim=0, keepdim=True)}


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", default="output")
    options = parser.parse_args()
    elastic = Elastic(steps=options.steps)
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=32,
        learning_rate=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=Regression(), args=arguments, train_dataset=Sums(), callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.checkpoint())


if __name__ == "__main__":
    main()
