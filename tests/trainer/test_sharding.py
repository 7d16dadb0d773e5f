"""A sharded model's formats and groups, on one rank of a group that is no group."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainer.contract.config import TrainerConfig
from trainer.parallel.sharding import shard
from trainer.parallel.strategy import Layout

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("precision", "inside"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_a_loss_gets_full_precision_whatever_blocks_compute_in(precision, inside):
    """As under ddp, where autocast adds up in full precision: a task's curve must not depend on the strategy."""
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), []
    model[1].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    shard(model, [model[0]], Layout(strategy="fsdp", replicas=1, shards=1), TrainerConfig(precision=precision), CPU)
    assert model(torch.ones(2, 4)).dtype == torch.float32
    assert seen == [inside]
