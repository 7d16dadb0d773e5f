"""The FLOPs of models, by formula and counted by torch, and the peaks of devices."""

from types import SimpleNamespace

import pytest
import torch

from tests.trainer.alone import NAME, OPTIONS, train_alone
from trainer.contract.config import parse_config
from trainer.loop.flops import peak_flops
from trainer.loop.mfu import count_flops_per_sample
from trainer.loop.task import open_task


@pytest.mark.parametrize(("preset", "seq_len"), [("nano", 64), ("micro", 32), ("nano", 1)])
def test_the_formula_matches_torchs_count(preset, seq_len, tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 2)
    config = parse_config({"preset": preset, "seq_len": seq_len, "data": str(tmp_path / "text"), "global_batch": 2})
    task = open_task(config)
    assert task.flops_per_sample == count_flops_per_sample(task, task.draft().model)


@pytest.mark.parametrize("own_init", [False, True])
def test_a_users_model_is_counted_on_the_meta_device(own_init):
    width = 16
    task = open_task(parse_config({**OPTIONS, "task": NAME, "task_config": {"width": width, "own_init": own_init}}))
    assert task.flops_per_sample is None
    model = task.draft().model
    first, inner = 4 * width, width * width + width
    # Per position: the forward pass and the weights' gradients of all layers, the inputs' of all but the first.
    assert count_flops_per_sample(task, model) == 8 * 2 * (2 * first + 3 * inner)
    assert all(parameter.grad is None and parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "fp16", 756),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA GH200 480GB", "bf16", 989),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA L40S", "bf16", 362),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_a_device_has_a_peak_by_its_name(name, precision, teraflops):
    assert peak_flops(name, precision) == teraflops * 1e12


@pytest.mark.parametrize(
    ("name", "precision"), [("Tesla K80", "fp32"), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16"), ("NVIDIA L4", "fp64")]
)
def test_an_unpublished_peak_is_unknown(name, precision):
    assert peak_flops(name, precision) is None


def test_tf32_counts_if_it_is_enabled():
    assert peak_flops("NVIDIA H200", "fp32", is_tf32=True) == 494e12


def test_mfu_is_reported_only_with_a_known_peak(tmp_path):
    with_peak, events = train_alone(tmp_path / "with", steps=3, peak_tflops=0.001)
    assert not events or all(event["kind"] != "setting.ignored" for event in events)
    flops = count_flops_per_sample(
        task := open_task(parse_config({**OPTIONS, "task_config": {"width": 8}})), task.draft().model
    )
    for metrics in with_peak.values():
        assert metrics["mfu"] == pytest.approx(8 * flops / 1e9 / metrics["step_s"])
    without, _ = train_alone(tmp_path / "without", steps=3)
    assert all("mfu" not in metrics for metrics in without.values())
    assert {step: metrics["loss"] for step, metrics in with_peak.items()} == {
        step: metrics["loss"] for step, metrics in without.items()
    }, "counting does not change the losses"


def test_a_model_that_cannot_be_counted_trains_without_mfu(tmp_path):
    metrics, events = train_alone(tmp_path, steps=2, peak_tflops=1, task_config={"width": 8, "uncountable": True})
    assert sorted(metrics) == [1, 2]
    (reported,) = [event["sentence"] for event in events if event["kind"] == "setting.ignored"]
    assert reported.startswith("no MFU: the model's operations cannot be counted: ")


class Caching(torch.nn.Linear):
    mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(self.out_features, device=x.device)
        return super().forward(x) * self.mask


def test_counting_does_not_change_the_model():
    with torch.device("meta"):
        model = Caching(4, 4)
    source = SimpleNamespace(micro_batch=2, read=lambda _: SimpleNamespace(batch=torch.ones(2, 4)))
    task = SimpleNamespace(source=source, loss=lambda model, batch, count: (model(batch).sum(), 1.0))
    assert count_flops_per_sample(task, model) > 0
    assert model.mask is None
    assert model.weight.grad is None
