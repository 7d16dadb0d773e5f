"""The state for a snapshot after an evaluation, and after the model has changed."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer.errors import StrategyError, TaskError
from trainer.parallel.optim import ShardedAdamW
from trainer.parallel.precision import LossScale
from trainer.snapshot.run_state import RunState


def attached(model):
    optimizer, state = ShardedAdamW(model.parameters()), RunState(LossScale("fp32"))
    state.attach(model, optimizer)
    return optimizer, state


@pytest.mark.usefixtures("group_of_one")
def test_parameters_left_gathered_by_an_evaluation_get_no_moments():
    """After a forward pass without a backward pass, the root's parameters stay gathered; with shard_grad_op, all do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer, state = attached(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 4))
    found = state.state_dict()
    assert len(optimizer.state) == 4, "only the shards have moments"
    assert found["optimizer"].keys() == dict(model.named_parameters()).keys()


class Hiding(torch.optim.Optimizer):
    """Keeps its state in `optim`, like torch's ZeroRedundancyOptimizer."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.optim = torch.optim.AdamW(self.param_groups[0]["params"])


def test_an_optimizer_that_hides_its_state_is_refused():
    model = nn.Linear(4, 4)
    with pytest.raises(TaskError, match=r"Hiding keeps its state in another optimizer.*shard_grad_op"):
        RunState(LossScale("fp32")).attach(model, Hiding(model.parameters()))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(4, 4))),
        lambda model: model.append(nn.Linear(4, 4)),
        lambda model: model.pop(1),
    ],
    ids=["replaced", "added", "removed"],
)
def test_a_model_that_changes_in_training_is_refused(change):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    _, state = attached(model)
    state.state_dict()
    change(model)
    with pytest.raises(StrategyError, match=r"parameter .* was added, replaced or removed since training began"):
        state.state_dict()
