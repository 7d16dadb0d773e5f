"""The loss scale of fp16, and clipping gradients of several types."""

import pytest
import torch
from torch import nn

from trainer.errors import NonFiniteLoss
from trainer.parallel.optim import clip_gradients, gather_gradients, measure_norm
from trainer.parallel.precision import LossScale


def test_the_scale_grows_after_many_good_steps_and_halves_at_once():
    scale = LossScale("fp16")
    assert all(scale.accepts(1.0) for _ in range(2000))
    assert scale.factor == 2.0**17
    assert not scale.accepts(float("inf"))
    assert not scale.accepts(float("nan"))
    assert scale.factor == 2.0**15
    assert scale.skipped_steps == 2


def test_a_restored_scale_continues():
    saved, restored = LossScale("fp16"), LossScale("fp16")
    saved.accepts(float("inf"))
    for _ in range(1999):
        saved.accepts(1.0)
    restored.load_state_dict(saved.state_dict())
    for scale in (saved, restored):
        assert scale.accepts(1.0)
        assert scale.factor == 2.0**16, "the 2000th good step doubles it"
        assert scale.skipped_steps == 1


def test_a_run_without_fp16_saves_no_scale():
    scale = LossScale("fp16")
    scale.load_state_dict(LossScale("bf16").state_dict())
    assert scale.factor == 2.0**16


def test_a_gradient_that_stays_infinite_ends_the_run():
    scale = LossScale("fp16")
    scale.factor = 2.0**-16
    with pytest.raises(NonFiniteLoss, match="at every loss scale"):
        scale.accepts(float("inf"))


def test_other_precisions_are_not_scaled():
    scale = LossScale("bf16")
    assert scale.accepts(float("nan"))
    assert scale.factor == 1.0


def test_gradients_of_several_formats_have_one_norm():
    parameters = [nn.Parameter(torch.zeros(3, dtype=kind)) for kind in (torch.float32, torch.bfloat16, torch.float64)]
    for parameter, value in zip(parameters, (3.0, 4.0, 12.0), strict=True):
        parameter.grad = torch.tensor([value, 0, 0], dtype=parameter.dtype) * 8
    gradients = gather_gradients(parameters)
    norm = measure_norm(gradients)
    assert norm.item() == pytest.approx(8 * 13.0)
    clip_gradients(gradients, norm, 6.5, loss_scale=8.0)
    assert [parameter.grad[0].item() for parameter in parameters] == pytest.approx([1.5, 2.0, 6.0], rel=1e-2)


def test_the_scale_is_undone_without_clipping():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([6.0, 8.0])
    gradients = gather_gradients([parameter])
    clip_gradients(gradients, measure_norm(gradients), 0.0, loss_scale=2.0)
    assert parameter.grad.tolist() == [3.0, 4.0]
