"""Two ranks save a state that the optimizer of only one of them has a part of. The first argument says which part."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.contract.env import parse_place
from trainer.errors import TrainerError
from trainer.parallel.precision import LossScale
from trainer.snapshot.run_state import RunState
from trainer.snapshot.shared_layout import SharedLayout
from trainer.snapshot.writing import SharedPlan, values_of, write_metadata, write_part
from trainer.worker.agreement import through_rank_zero
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import Waits

CASE, FOLDER = sys.argv[1], Path(sys.argv[2])


class Model(nn.Module):
    """`shared` has gradients on both ranks, `own` on one."""

    def __init__(self) -> None:
        super().__init__()
        own = torch.ones(4, 2)
        if CASE == "sharded":
            own = distribute_tensor(own, init_device_mesh("cpu", (2,)), [Shard(0)])
        self.shared, self.own = nn.Parameter(torch.ones(3)), nn.Parameter(own)


def update(optimizer: torch.optim.Optimizer, *parameters: nn.Parameter) -> None:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def save(plans: SharedPlan, state: RunState, waits: Waits) -> None:
    plan = plans.of(state)
    values = values_of(state, plan)
    through_rank_zero(
        lambda: write_part(plan, values, FOLDER),
        lambda parts: [None] * len(parts) if write_metadata(plan, parts, FOLDER) else [],
        waits,
    )


def main() -> None:
    place = parse_place(os.environ)
    waits = Waits(Heartbeat(place, 1))
    with process_group(place, waits):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        state = RunState(LossScale("fp32"))
        state.attach(model, optimizer)
        plans, shared = SharedPlan(waits), SharedLayout(waits)
        update(optimizer, model.shared)
        assert plans.of(state) is plans.of(state)
        assert shared.is_outdated(state)
        assert not shared.covers(state)
        shared.compare(state)
        assert not shared.is_outdated(state)
        assert shared.covers(state)
        if dist.get_rank() == 1:
            update(optimizer, model.shared, model.own)
            if CASE == "number":
                optimizer.state[model.own]["number"] = 1
        assert shared.covers(state) == (dist.get_rank() == 0)
        assert shared.is_outdated(state) == (dist.get_rank() == 1)
        shared.compare(state)
        assert not shared.covers(state), "no rank alone has the whole state"
        try:
            save(plans, state, waits)
        except TrainerError as error:
            print(f"refused: {error}", flush=True)


main()
