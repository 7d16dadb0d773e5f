"""The formulas against fake tensors, and the tables without torch against the modules with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainer.checks.traced_memory import trace_peak
from trainer.contract.config import PRESETS
from trainer.contract.memory import estimate
from trainer.contract.shapes import SHAPES
from trainer.contract.workload import Workload, decoder_shape, preset_shape
from trainer.model.decoder import Decoder

SMALL = decoder_shape(width=256, layers=6, heads=4, feed_forward=768, vocab=256)
WORDS = decoder_shape(width=256, layers=4, heads=4, feed_forward=1024, vocab=8192)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_formulas_count_the_parameters_of_the_model(preset):
    with torch.device("meta"):
        model = Decoder(SHAPES[preset], vocab_size=256, dropout=0.0)
    shape = preset_shape(preset)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.block_parameters == sum(parameter.numel() for parameter in model.blocks[0].parameters())


@pytest.mark.parametrize(
    "load",
    [
        Workload(shape=SMALL, seq_len=256, micro_batch=4),
        Workload(shape=WORDS, seq_len=256, micro_batch=2, precision="bf16", devices=8),
        Workload(shape=SMALL, seq_len=256, micro_batch=4, strategy="fsdp", devices=8, recompute_every=1),
        Workload(shape=WORDS, seq_len=256, micro_batch=2, strategy="shard_grad_op", precision="bf16", devices=8),
        Workload(shape=WORDS, seq_len=64, micro_batch=1, strategy="hsdp", devices=8, shard_size=4, accumulates=True),
    ],
    ids=lambda load: f"{load.strategy}-{load.precision}",
)
def test_the_formulas_are_within_a_tenth_of_fake_tensors(load):
    assert estimate(load).terms.total == pytest.approx(trace_peak(load), rel=0.1)


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"strategy": "zero2"}, {"offloads": True}])
def test_what_cannot_be_traced_is_refused(change):
    with pytest.raises(ValueError, match="can be traced"):
        trace_peak(replace(Workload(shape=SMALL, seq_len=16, micro_batch=1), **change))
