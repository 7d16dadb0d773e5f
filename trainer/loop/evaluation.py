"""The loss on held-out data. Each sample counts once on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from trainer.data.feeder import send
from trainer.data.source import Request, Source
from trainer.errors import DataError
from trainer.worker.run import Run


@dataclass(frozen=True)
class Evaluation:
    """A source of `length` samples, read in order."""

    source: Source
    length: int

    @property
    def num_microbatches(self) -> int:
        return math.ceil(self.length / self.source.micro_batch)

    def request(self, microbatch: int) -> Request:
        first = microbatch * self.source.micro_batch
        return Request(0, microbatch, first, min(self.source.micro_batch, self.length - first))


@torch.no_grad()
def evaluate(
    run: Run,
    evaluation: Evaluation,
    shares: Iterable[tuple[int, float]],
    loss_of: Callable[[object, int], tuple[torch.Tensor, torch.Tensor | float]],
    model: nn.Module,
) -> float:
    """The mean loss over all samples. `shares` are this rank's microbatches; dummies have weight 0. Collective.

    Raises DataError for a sample that cannot be read.
    """
    sums_2 = torch.zeros(2, dtype=torch.float64, device=run.device)
    model.eval()
    for microbatch, counts in shares:
        run.waits.end()
        request = evaluation.request(microbatch)
        read = evaluation.source.read(request)
        if read.failure is not None:
            raise DataError(f"evaluate: {read.failure}")
        loss, weight = loss_of(send(read, run.device).batch, request.count)
        sums_2[0] += loss * counts
        sums_2[1] += weight * counts
    model.train()
    run.waits.begin()
    dist.all_reduce(sums_2)
    total, weight_sum = sums_2.tolist()
    run.waits.end()
    return float(total / weight_sum)
