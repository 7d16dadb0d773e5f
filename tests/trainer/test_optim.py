"""Where AdamW keeps what it counts."""

import pytest
import torch
from torch import nn

from trainer.contract.config import TrainerConfig
from trainer.parallel.optim import build_optimizer


@pytest.mark.parametrize(("impl", "device"), [("fused", "meta"), ("foreach", "cpu"), ("plain", "cpu")])
def test_only_a_fused_step_is_counted_on_the_device(impl, device):
    """The others read the count on the host, once for each parameter: each would wait for the device."""
    model = nn.Linear(3, 3, device="meta")
    optimizer = build_optimizer(model, TrainerConfig(optimizer_impl=impl))
    optimizer.prepare(model.parameters())
    counts = [optimizer.state[parameter]["step"] for parameter in model.parameters()]
    assert [(count.device.type, count.dtype) for count in counts] == [(device, torch.float32)] * 2
    moments = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
    assert {moment.device.type for moment in moments} == {"meta"}
