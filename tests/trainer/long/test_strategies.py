"""Every strategy with its settings in a group of two ranks, compared with plain training on one rank."""

import json
from pathlib import Path

import pytest

from tests.trainer.harness import start_group

ENTRY = (str(Path(__file__).parents[1] / "strategies_entry.py"),)
PLAIN = {"ddp": {"strategy": "ddp"}, "fp64": {"strategy": "ddp", "precision": "fp64"}}
EXACT = {
    "ddp": {
        "strategy": "NO_SHARD",
        "bucket_mb": 1,
        "gradient_as_bucket_view": False,
        "broadcast_buffers": False,
        "optimizer_impl": "foreach",
        "activation_checkpointing": "selective",
        "sync_batchnorm": True,
    },
    "static graph": {"strategy": "ddp", "static_graph": True, "activation_checkpointing": "full"},
    "full shard": {
        "strategy": "FULL_SHARD",
        "cpu_offload": True,
        "prefetch_blocks": 2,
        "activation_checkpointing": "full",
        "optimizer_impl": "plain",
    },
    "by class": {"strategy": "zero3", "wrap": ["Attention", "FeedForward"], "activation_checkpointing": "selective"},
    "gradients": {"strategy": "zero2", "wrap": ">=50K", "gradient_sync": "step"},
    "copies": {"strategy": "HYBRID_SHARD", "shard_size": 1, "activation_checkpointing": "every-2"},
    "one node": {"strategy": "hsdp"},
    "uneven": {"strategy": "hsdp", "shard_size": 3},
    "unused, and allowed": {"strategy": "ddp", "_adds_unused": True, "find_unused_parameters": True},
}
OTHERS = {
    "fp64 sharded": {"strategy": "fsdp", "precision": "fp64"},
    "bf16": {"strategy": "ddp", "precision": "bf16"},
    "bf16 sharded": {"strategy": "fsdp", "precision": "bf16"},
    "fp16": {"strategy": "ddp", "precision": "fp16", "reduce_precision": "fp16"},
    "fp16 sharded": {"strategy": "fsdp", "precision": "fp16"},
    "fp16 overflow": {"strategy": "fsdp", "precision": "fp16", "_loss_scale": 2.0**40},
    "unused": {"strategy": "ddp", "_adds_unused": True},
    "no such class": {"strategy": "fsdp", "wrap": "Blok"},
    "bf16 by gloo": {"strategy": "ddp", "reduce_precision": "bf16"},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return run(tmp_path_factory.mktemp("two"), 2, EXACT | OTHERS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return run(tmp_path_factory.mktemp("one"), 1, PLAIN)


def run(folder: Path, world_size: int, cases: dict[str, dict], timeout_s: float = 150) -> dict[str, dict]:
    with start_group(folder, world_size, entry=ENTRY, cases=cases) as group:
        assert group.wait(timeout_s) == [0] * world_size, group.outputs()
        return json.loads(group.processes[0].communicate(timeout=300)[0].splitlines()[-1])


def difference(found: dict, expected: dict, what: str = "losses") -> float:
    return max(abs(a - b) / b for a, b in zip(found[what], expected[what], strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_every_strategy_has_the_same_loss_and_gradient(name, found, plain):
    assert difference(found[name], plain["ddp"]) < 1e-6
    assert difference(found[name], plain["ddp"], "grad_norms") < 1e-5, "copies and shards count once each"


def test_two_ranks_differ_from_one_only_by_rounding(found, plain):
    assert difference(found["fp64 sharded"], plain["fp64"]) < 1e-14
    assert found["fp64 sharded"]["dtype"] == "torch.float64"


@pytest.mark.parametrize("name", ["bf16", "bf16 sharded", "fp16", "fp16 sharded"])
def test_16_bit_formats_are_used_and_give_near_results(name, found, plain):
    assert 1e-8 < difference(found[name], plain["ddp"]) < 1e-3
    assert found[name]["dtype"] == "torch.float32", "the optimizer works on full precision"


def test_shards_and_copies_are_placed_as_configured(found):
    rows = {name: found[name]["own_rows"] for name in ("ddp", "full shard", "copies", "one node")}
    assert rows == {"ddp": 384, "full shard": 192, "copies": 384, "one node": 192}
    assert found["copies"]["copies"] == [2, 1]
    assert found["one node"]["copies"] == [1, 2]


def test_names_of_parameters_do_not_depend_on_the_strategy(found, plain):
    assert all(found[name]["names"] == plain["ddp"]["names"] for name in EXACT if "unused" not in name)


def test_an_unavailable_setting_is_reported(found):
    assert found["uneven"]["copies"] == [1, 2]
    assert found["uneven"]["notices"] == ["hsdp shards over all ranks: 2 ranks are not a multiple of 3"]
    assert "has no effect on CPUs" in found["ddp"]["notices"][0]


def test_an_overflow_skips_the_step_and_halves_the_scale(found):
    scale, losses = found["fp16 overflow"]["loss_scale"], found["fp16 overflow"]["losses"]
    assert scale["skipped_steps"] == 4
    assert scale["factor"] == 2.0**36
    assert min(losses) > 5.4, "an update would have brought the loss down"


def test_an_unused_parameter_is_named_with_the_key_that_allows_it(found):
    assert found["unused"]["error"] == (
        "UnusedParameters: no gradient reached spare.weight, spare.bias; "
        "set find_unused_parameters: true, or remove them"
    )


def test_an_unknown_wrap_class_is_answered_with_the_known_ones(found):
    assert "wrap: no module is a Blok; there are Attention, Block" in found["no such class"]["error"]


def test_bf16_gradients_are_refused_with_gloo(found):
    assert found["bf16 by gloo"]["error"].startswith("StrategyError: reduce_precision: bf16 needs NCCL")
