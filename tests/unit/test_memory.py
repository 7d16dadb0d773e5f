"""The formulas for memory: published cases, what torch traced, and what must hold for any shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.contract.memory import estimate, model_states
from trainer.contract.workload import Workload, decoder_shape, preset_shape

GB = 1e9
LARGE = Workload(shape=preset_shape("8b"), seq_len=2048, micro_batch=1, precision="bf16", devices=8)
SMALL = Workload(
    shape=decoder_shape(width=256, layers=6, heads=4, feed_forward=768, vocab=256), seq_len=256, micro_batch=4
)
WORDS = Workload(
    shape=decoder_shape(width=256, layers=4, heads=4, feed_forward=1024, vocab=8192), seq_len=256, micro_batch=2
)


@pytest.mark.parametrize(
    ("load", "traced"),
    [
        (Workload(shape=preset_shape("124m", vocab=50_304), seq_len=1024, micro_batch=8), 15_768_815_012),
        (
            Workload(
                shape=preset_shape("1b", vocab=128_256),
                seq_len=2048,
                micro_batch=4,
                devices=8,
                precision="bf16",
                recompute_every=1,
            ),
            39_962_411_508,
        ),
        (
            replace(LARGE, shape=preset_shape("8b", vocab=128_256), seq_len=4096, strategy="fsdp"),
            54_123_756_444,
        ),
        (
            replace(
                LARGE,
                shape=preset_shape("8b", vocab=128_256),
                seq_len=8192,
                micro_batch=2,
                devices=64,
                strategy="hsdp",
                shard_size=8,
                recompute_every=1,
                accumulates=True,
            ),
            50_089_116_580,
        ),
        (
            Workload(shape=preset_shape("1b"), seq_len=2048, micro_batch=2, devices=8, strategy="shard_grad_op"),
            21_327_424_988,
        ),
        (SMALL, 222_626_012),
        (replace(WORDS, precision="bf16", devices=8), 233_662_612),
        (replace(SMALL, strategy="fsdp", devices=8, recompute_every=1), 56_964_444),
        (replace(WORDS, strategy="shard_grad_op", precision="bf16", devices=8), 114_882_580),
        (
            replace(WORDS, seq_len=64, micro_batch=1, strategy="hsdp", devices=8, shard_size=4, accumulates=True),
            80_796_044,
        ),
    ],
)
def test_the_formulas_are_near_what_torch_traced(load: Workload, traced: int) -> None:
    """MemTracker and FSDPMemTracker of torch 2.13, with fake tensors: bytes at the peak of a second step with AdamW."""
    assert estimate(load).terms.total == pytest.approx(traced, rel=0.03)


@pytest.mark.parametrize(
    ("strategy", "precision", "gigabytes"),
    [("ddp", "bf16", 120), ("ddp", "fp16", 120), ("ddp", "fp32", 120), ("ddp", "fp64", 240), ("fsdp", "bf16", 1.88)],
)
def test_the_model_states_are_those_of_the_zero_paper(strategy: str, precision: str, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5B parameters, 64 devices, mixed precision with Adam (K = 12)."""
    paper = replace(preset_shape("8b"), parameters=7_500_000_000)
    load = replace(LARGE, shape=paper, strategy=strategy, precision=precision, devices=64)
    assert model_states(load).total / GB == pytest.approx(gigabytes, rel=0.005)


def test_hsdp_divides_by_its_shard_size_alone() -> None:
    hsdp = replace(LARGE, strategy="hsdp", devices=32, shard_size=8)
    assert model_states(hsdp) == model_states(replace(LARGE, strategy="fsdp", devices=8))


def test_hsdp_shards_over_all_devices_if_the_group_cannot_be_divided_evenly() -> None:
    assert replace(LARGE, strategy="hsdp", devices=12, shard_size=8).shards == 12


def test_offloading_moves_the_model_states_to_the_host() -> None:
    sharded = replace(LARGE, strategy="fsdp")
    offloaded = estimate(replace(sharded, offloads=True))
    assert offloaded.host == model_states(sharded).total
    assert offloaded.terms.parameters == offloaded.terms.optimizer == 0
    assert offloaded.terms.gathers > 0


def test_recomputation_saves_activations_and_saves_less_with_every_second_block() -> None:
    none, second, every = (estimate(replace(LARGE, recompute_every=every)).terms.activations for every in (0, 2, 1))
    assert every < second < none
    products = estimate(replace(LARGE, recompute_every=1, keeps_products=True)).terms.activations
    assert every < products < none


def test_an_accelerator_needs_more_than_its_tensors() -> None:
    on_device, on_cpu = estimate(LARGE), estimate(LARGE, on_cpu=True)
    assert on_device.terms == on_cpu.terms
    assert 0 < on_cpu.overhead < 1e9 < on_device.overhead


def test_the_formulas_match_the_drop_that_torchtitan_published() -> None:
    """torchtitan, docs/performance.md: Llama 3.1 8B with FSDP takes 15.4 GiB less on 128 devices than on 8."""
    states = [model_states(replace(LARGE, strategy="fsdp", devices=devices)).total for devices in (8, 128)]
    assert (states[0] - states[1]) / 2**30 == pytest.approx(15.4, rel=0.15)
