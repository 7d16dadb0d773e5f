"""The effect of single settings between ranks: `keys_entry.py '{"cases": {"name": {config}}}'`, on each rank.

Rank 0 prints one line of JSON: for each name the exchanges of gradients in one step, and each rank's buffer after it.
"""

import json
import os
import sys
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.strategies_entry import SHORT
from trainer.contract.config import TrainerConfig, parse_config
from trainer.contract.env import WorkerPlace, parse_place
from trainer.loop.microbatches import open_feeder
from trainer.loop.step import Stepper, StepRequest
from trainer.loop.task import open_task
from trainer.model.decoder import build_initial
from trainer.parallel import communication as exchange
from trainer.parallel.materialize import initialize
from trainer.parallel.precision import LossScale
from trainer.parallel.trainee import Trainee, build_trainee
from trainer.snapshot.run_state import RunState
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.run import Run
from trainer.worker.waits import Waits

_LARGE = 10_000  # elements: only gradients have more


class Counts(SimpleNamespace):
    """Counts of one step: backward passes that DDP reduced, and FSDP's reductions over shards and over copies."""

    def __init__(self) -> None:
        super().__init__(backward_passes=0, shards=0, copies=0)

    def count_bucket(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.backward_passes += bucket.is_last()
        return allreduce_hook(state, bucket)

    def count_shards(self, *args: object, **kwargs: object) -> object:
        self.shards += 1
        return REDUCE(*args, **kwargs)

    def count_copies(self, tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        self.copies += tensor.numel() > _LARGE
        return ALL_REDUCE(tensor, *args, **kwargs)


REDUCE, ALL_REDUCE = exchange._reduce, dist.all_reduce


def take_one_step(
    config: TrainerConfig, place: WorkerPlace, device: torch.device, heartbeat: Heartbeat
) -> tuple[Trainee, Counts]:
    """The model has a buffer that holds its rank before the step."""
    state, task, counts = RunState(LossScale(config.precision)), open_task(config), Counts()
    model = task.draft().model
    with torch.device("meta"):
        model.register_buffer("rank", torch.empty(1), persistent=False)

    def write_values(model, optimizer):
        state.attach(model, optimizer)
        initialize(model, partial(build_initial, seed=config.seed, layers=4))
        model.rank.fill_(float(place.rank))

    run = Run(config=config, place=place, device=device, heartbeat=heartbeat, waits=Waits(heartbeat))
    trainee = build_trainee(run, model, write_values)
    stepper = Stepper(run, task, trainee, open_feeder(run, task, state), state)
    if isinstance(trainee.forward, DistributedDataParallel):
        trainee.forward.register_comm_hook(None, counts.count_bucket)
    exchange._reduce, dist.all_reduce = counts.count_shards, counts.count_copies
    try:
        stepper.take(StepRequest)
    finally:
        exchange._reduce, dist.all_reduce = REDUCE, ALL_REDUCE
    return trainee, counts


def main() -> None:
    place = parse_place(os.environ)
    cases: dict[str, dict] = json.loads(sys.argv[2])["cases"]
    found: dict[str, dict] = {}
    heartbeat = Heartbeat(place, 1)
    with process_group(place, Waits(heartbeat)) as device:
        for name, options in cases.items():
            trainee, counts = take_one_step(parse_config({**SHORT, **options}), place, device, heartbeat)
            buffers: list[float] = [0.0] * place.world_size
            dist.all_gather_object(buffers, trainee.model.rank.item())
            found[name] = {**vars(counts), "buffers": buffers}
            del trainee
    if place.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
