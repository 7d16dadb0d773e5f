"""What a snapshot takes of a model that has just been used otherwise, or has changed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer.errors import StrategyError
from trainer.parallel.optim import ShardedAdamW
from trainer.parallel.precision import LossScale
from trainer.snapshot.run_state import RunState


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def attached(model):
    optimizer, state = ShardedAdamW(model.parameters()), RunState(LossScale("fp32"))
    state.attach(model, optimizer)
    return optimizer, state


def test_parameters_that_an_evaluation_has_left_gathered_get_no_moments(group):
    """A root's stay whole after a forward pass without a backward pass; so do all under shard_grad_op."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer, state = attached(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 4))
    found = state.state_dict()
    assert len(optimizer.state) == 4, "of the shards, and of nothing else"
    assert found["optimizer"].keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(4, 4))),
        lambda model: model.append(nn.Linear(4, 4)),
        lambda model: model.pop(1),
    ],
    ids=["replaced", "added", "taken away"],
)
def test_a_model_that_changes_in_training_is_refused(change):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    _, state = attached(model)
    state.state_dict()
    change(model)
    with pytest.raises(StrategyError, match=r"parameter .* was added, replaced or taken away since training began"):
        state.state_dict()
