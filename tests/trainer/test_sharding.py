"""The number formats of a sharded model, in a group of one rank."""

import pytest
import torch
from torch import nn

from trainer.contract.config import TrainerConfig
from trainer.parallel.sharding import shard
from trainer.parallel.strategy import Layout

CPU = torch.device("cpu")


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("precision", "inside"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_the_loss_gets_full_precision_with_any_precision_of_blocks(precision, inside):
    """As with ddp, where autocast sums in full precision: the curve must not depend on the strategy."""
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), []
    model[1].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    shard(model, [model[0]], Layout(strategy="fsdp", replicas=1, shards=1), TrainerConfig(precision=precision), CPU)
    assert model(torch.ones(2, 4)).dtype == torch.float32
    assert seen == [inside]
