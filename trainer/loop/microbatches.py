"""Which microbatches a rank reads and computes: a function of the global step and the rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from trainer.contract.config import TrainerConfig, parse_workers
from trainer.data.feeder import Feeder, cores_of
from trainer.data.source import Request
from trainer.loop.task import Task
from trainer.snapshot.run_state import RunState
from trainer.worker.run import Run


@dataclass(frozen=True)
class Share:
    """One microbatch of this rank. A dummy has weight 0 and only takes part in collectives."""

    microbatch: int
    weight: float


def assign_microbatches(rank: int, world_size: int, count: int) -> list[Share]:
    """Microbatch k belongs to rank k mod world_size. Dummies make the number equal on all ranks."""
    mine = range(rank, math.ceil(count / world_size) * world_size, world_size)
    return [Share(k % count, 1.0 if k < count else 0.0) for k in mine]


def own_shares(config: TrainerConfig, task: Task) -> list[Share]:
    """This rank's microbatches of a step. Every step has the same number."""
    return assign_microbatches(dist.get_rank(), dist.get_world_size(), config.global_batch // task.source.micro_batch)


def open_feeder(run: Run, task: Task, state: RunState) -> Feeder:
    """Read this rank's microbatches, starting at the state's step."""
    wanted = parse_workers(run.config.data_workers)
    return Feeder(
        task.source,
        _requests(run.config, task, state),
        workers=task.source.workers if wanted is None else wanted,
        device=run.device,
        cores=cores_of(run.place.local_world_size),
    )


def _requests(config: TrainerConfig, task: Task, state: RunState) -> Iterator[Request]:
    """This rank's microbatches from the current step on, without end."""
    size, step, first = task.source.micro_batch, state.step, state.samples_seen
    while True:
        for share in own_shares(config, task):
            yield Request(step, share.microbatch, first + share.microbatch * size, size)
        step, first = step + 1, first + config.global_batch
