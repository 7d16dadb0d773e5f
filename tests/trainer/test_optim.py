"""The step counts of AdamW."""

import pytest
import torch
from torch import nn

from trainer.contract.config import TrainerConfig
from trainer.parallel.optim import build_optimizer


@pytest.mark.parametrize(("impl", "device"), [("fused", "meta"), ("foreach", "cpu"), ("plain", "cpu")])
def test_only_the_fused_optimizer_counts_steps_on_the_device(impl, device):
    """The other kernels read the count of each parameter on the host, and would wait for the device each time."""
    model = nn.Linear(3, 3, device="meta")
    optimizer = build_optimizer(model, TrainerConfig(optimizer_impl=impl))
    optimizer.prepare(model.parameters())
    counts = [optimizer.state[parameter]["step"] for parameter in model.parameters()]
    assert [(count.device.type, count.dtype) for count in counts] == [(device, torch.float32)] * 2
    moments = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
    assert {moment.device.type for moment in moments} == {"meta"}
