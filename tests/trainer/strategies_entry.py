"""Several short trainings one after the other in one group of ranks: `strategies_entry.py '{"name": {config}}'`.

Rank 0 prints one line of JSON: for each name its losses, its gradient norms and other results, or its error.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch

from tests.trainer.harness import TINY
from trainer.contract.config import parse_config
from trainer.contract.env import WorkerPlace, parse_place
from trainer.errors import TrainerError
from trainer.loop.microbatches import open_feeder
from trainer.loop.step import Stepper, StepRequest
from trainer.loop.task import open_task
from trainer.model.decoder import build_initial
from trainer.parallel.materialize import initialize
from trainer.parallel.optim import local_of
from trainer.parallel.precision import LossScale
from trainer.parallel.trainee import Trainee, build_trainee
from trainer.snapshot.run_state import RunState
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.run import Run
from trainer.worker.waits import Waits

SHORT = {
    **TINY,
    "data": str(Path(__file__).resolve()),
    "steps": 4,
    "warmup_steps": 0,
    "global_batch": 4,
    "micro_batch": 1,
    "seq_len": 16,
    "dropout": 0.1,
}


def train(options: dict, place: WorkerPlace, device: torch.device, heartbeat: Heartbeat) -> dict:
    # Keys that begin with "_" are options of this program.
    config = parse_config({**SHORT, **{name: value for name, value in options.items() if name[0] != "_"}})
    state, task = RunState(LossScale(config.precision)), open_task(config)
    model = task.draft().model
    if options.get("_adds_unused"):
        with torch.device("meta"):
            model.spare = torch.nn.Linear(4, 4)

    def write_values(model, optimizer):
        state.attach(model, optimizer)
        initialize(model, partial(build_initial, seed=config.seed, layers=4))

    run = Run(config=config, place=place, device=device, heartbeat=heartbeat, waits=Waits(heartbeat))
    trainee = build_trainee(run, model, write_values)
    if "_loss_scale" in options:
        state.loss_scale.factor = options["_loss_scale"]
    stepper = Stepper(run, task, trainee, open_feeder(run, task, state), state)
    results = [stepper.take(StepRequest) for _ in range(config.steps)]
    return {
        "losses": [result.loss for result in results],
        "grad_norms": [result.grad_norm for result in results],
        **describe(trainee, state),
    }


def describe(trainee: Trainee, state: RunState) -> dict:
    weight = trainee.model.blocks[0].attention.qkv.weight
    return {
        "strategy": trainee.layout.strategy,
        "copies": [trainee.layout.replicas, trainee.layout.shards],
        "notices": trainee.notices,
        "own_rows": len(local_of(weight)),
        "dtype": str(weight.dtype),
        "compiled": sum(hasattr(block.forward, "_torchdynamo_orig_callable") for block in trainee.model.blocks),
        "names": sorted(trainee.parameters),
        "loss_scale": state.loss_scale.state_dict(),
    }


def main() -> None:
    place = parse_place(os.environ)
    cases: dict[str, dict] = json.loads(sys.argv[2])["cases"]
    found: dict[str, dict] = {}
    heartbeat = Heartbeat(place, 1)
    with process_group(place, Waits(heartbeat)) as device:
        for name, options in cases.items():
            try:
                found[name] = train(options, place, device, heartbeat)
            except TrainerError as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    if place.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
