"""The ladder, the way out of a shortage, what `auto` means, and what the command prints."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from trainer.checks import memory_advice as advise
from trainer.contract.advice import (
    LADDER,
    choose_strategy,
    climb,
    describe_need,
    describe_shortage,
    find_relief,
    first_fitting,
)
from trainer.contract.config import parse_config
from trainer.contract.devices import find_device_bytes, parse_size
from trainer.contract.workload import Workload, build_workload, preset_shape

LARGE = Workload(shape=preset_shape("8b"), seq_len=2048, micro_batch=4, devices=8)
SMALL = Workload(shape=preset_shape("124m"), seq_len=512, micro_batch=4, devices=8)


def rung(load: Workload, gigabytes: float) -> str | None:
    step = first_fitting(climb(load, gigabytes * 1e9))
    return None if step is None else step.rung.name


@pytest.mark.parametrize(
    ("load", "gigabytes", "name"),
    [
        (replace(SMALL, devices=1), 80, "one device"),
        (SMALL, 80, "DDP"),
        (SMALL, 4.5, "bf16 and activation checkpointing"),
        (LARGE, 80, "FSDP"),
        (LARGE, 16, "FSDP with CPU offload"),
        (replace(LARGE, devices=1), 80, "FSDP with CPU offload"),
        (LARGE, 2, None),
    ],
)
def test_the_first_rung_that_fits_is_recommended(load: Workload, gigabytes: float, name: str | None) -> None:
    assert rung(load, gigabytes) == name


def test_a_higher_rung_never_needs_more_of_a_large_model() -> None:
    needs = [step.need.total for step in climb(LARGE, None)]
    assert needs == sorted(needs, reverse=True)
    assert len(needs) == len(LADDER) - 1  # the rung for one device is left out


def test_the_need_is_one_sentence_with_the_first_rung_that_fits() -> None:
    assert describe_need(LARGE, None).startswith("about ")
    assert describe_need(SMALL, 80e9).endswith("it fits into 80 GB")
    short = describe_need(LARGE, 80e9)
    assert "more than the available 80 GB; the first that fits is FSDP with" in short
    assert "strategy: fsdp" in short
    assert "tensor parallelism" in describe_need(LARGE, 2e9)


def test_auto_is_ddp_until_a_replica_does_not_fit() -> None:
    assert choose_strategy(LARGE, 80e9) == "fsdp"
    assert choose_strategy(LARGE, 288e9) == "ddp"
    assert choose_strategy(replace(LARGE, devices=1), 16e9) == "ddp"
    assert choose_strategy(replace(SMALL, offloads=True), 80e9) == "fsdp"


def test_auto_decides_by_size_if_the_device_is_unknown() -> None:
    assert choose_strategy(SMALL, None) == "ddp"
    assert choose_strategy(LARGE, None) == "fsdp"


def test_a_shortage_is_answered_with_the_cheapest_change_that_helps() -> None:
    wide = replace(SMALL, micro_batch=12)
    assert find_relief(wide) is not None
    assert "micro_batch: 6, at the same global batch" in describe_shortage(wide)
    assert "activation_checkpointing: full" in describe_shortage(replace(wide, micro_batch=1, seq_len=8192))
    states = replace(LARGE, micro_batch=1, seq_len=128, recompute_every=1)
    assert "the largest part is optimizer" in describe_shortage(states)
    assert "try strategy: fsdp (saves" in describe_shortage(states)
    sharded = replace(states, strategy="fsdp")
    held = replace(sharded, accumulates=True, holds_gradients=True)
    assert "try gradient_sync: microbatch" in describe_shortage(held)
    assert "cpu_offload: true" in describe_shortage(sharded)
    assert "it needs more devices" in describe_shortage(replace(sharded, offloads=True))


def test_a_smaller_micro_batch_that_would_save_little_is_not_proposed() -> None:
    states = replace(LARGE, micro_batch=2, seq_len=16, recompute_every=1)
    assert "micro_batch" not in describe_shortage(states)


def test_a_workload_is_read_from_the_configuration() -> None:
    config = parse_config(
        {
            "preset": "1b",
            "strategy": "hybrid_shard",
            "shard_size": 4,
            "precision": "bf16",
            "activation_checkpointing": "every-2",
            "gradient_sync": "step",
            "global_batch": 64,
            "micro_batch": 4,
            "seq_len": 1024,
        }
    )
    load = build_workload(config, world_size=8)
    assert (load.strategy, load.shards, load.precision, load.recompute_every) == ("hsdp", 4, "bf16", 2)
    assert (load.tokens, load.accumulates, load.holds_gradients) == (4096, True, True)
    assert not build_workload(config, world_size=16).accumulates


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("h100", 80), ("NVIDIA-A100-SXM4-80GB", 80), ("a100", 40), ("1g.10gb", 10), ("H200", 141), ("abacus", None)],
)
def test_devices_are_known_by_name(name: str, gigabytes: int | None) -> None:
    assert find_device_bytes(name) == (None if gigabytes is None else gigabytes * 10**9)


def test_sizes_have_units() -> None:
    assert parse_size("80GB") == 80 * 10**9
    assert parse_size("79.5 GiB") == int(79.5 * 2**30)
    with pytest.raises(ValueError, match="80GB"):
        parse_size("80")


def test_the_command_recommends_a_rung(capsys: pytest.CaptureFixture[str]) -> None:
    assert advise.main(["--preset", "8b", "--device", "h100", "--devices", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] == "FSDP"
    assert told["rungs"][0]["terms"]["optimizer"] == 8 * told["parameters"]
    assert advise.main(["--preset", "8b", "--device-memory", "2GB", "--devices", "8"]) == 1
    assert "Nothing fits into 2 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--preset", "8b", "--device", "abacus"],
        ["--config", "{}", "--device-memory", "80"],
        ["--config", "[]"],
        ["--config", "@/nowhere"],
        ["--config", '{"task": "my.task:build"}'],
    ],
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        advise.main(arguments)
    assert ended.value.code == 2


def test_the_command_imports_no_torch() -> None:
    program = """if True:
        import sys
        from trainer.checks import memory_advice
        memory_advice.main(["--preset", "8b"])
        sys.exit("torch" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], timeout=300, stdout=subprocess.DEVNULL).returncode == 0
