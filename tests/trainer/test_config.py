"""The trainer's configuration: names of other frameworks, wrong values, and the reference in the docs."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from trainer.contract import near_misses
from trainer.contract.config import (
    STRATEGY_ALIASES,
    Checkpointing,
    ConfigError,
    TrainerConfig,
    Wrap,
    parse_checkpointing,
    parse_config,
    parse_strategy,
    parse_wrap,
    render_config,
)

REFERENCE = (Path(__file__).parents[2] / "docs/trainer.md").read_text()


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("FULL_SHARD", "fsdp"),
        ("SHARD_GRAD_OP", "shard_grad_op"),
        ("NO_SHARD", "ddp"),
        ("HYBRID_SHARD", "hsdp"),
        ("zero2", "shard_grad_op"),
        ("ZeRO3", "fsdp"),
        ("deepspeed-stage-3", "fsdp"),
        ("hsdp", "hsdp"),
    ],
)
def test_strategies_have_aliases_from_other_frameworks(text, strategy):
    assert parse_strategy(text) == strategy
    parse_config({"strategy": text})


@pytest.mark.parametrize("text", ["tp", "tensor_parallel", "pipeline", "DP", "DataParallel"])
def test_an_unsupported_strategy_is_refused_with_advice(text):
    with pytest.raises(ConfigError, match=r"strategy: .* use (fsdp|ddp)"):
        parse_config({"strategy": text})
    with pytest.raises(ConfigError, match=r"reduce_precision: powersgd .* use fp16 or bf16"):
        parse_config({"reduce_precision": "powersgd"})


@pytest.mark.parametrize(
    ("document", "advice"),
    [
        ({"precision": "bf16-mixed"}, "did you mean bf16?"),
        ({"precision": "16-mixed"}, "did you mean fp16?"),
        ({"precision": "float32"}, "did you mean fp32?"),
        ({"strategy": "ddp_find_unused_parameters_true"}, "did you mean ddp with find_unused_parameters?"),
        ({"strategy": "full_shrad"}, "did you mean full_shard?"),
        ({"strategy": "zero1"}, "shard_grad_op communicates as much and needs less memory"),
        ({"strategy": "deepspeed_stage_1"}, "shard_grad_op communicates as much and needs less memory"),
        ({"strategy": "deepspeed"}, "fsdp to its stage 3"),
        ({"gradient_accumulation_steps": 4}, "global_batch / (micro_batch * ranks) microbatches; set micro_batch"),
        ({"strategy": "deepspeed_stage_3_offload"}, "did you mean fsdp with cpu_offload?"),
        ({"globl_batch": 4}, "did you mean global_batch?"),
        ({"max_steps": 4}, "did you mean steps?"),
        ({"limit_all_gathers": True}, "FSDP2 limits its gathers by itself"),
        ({"deepspeed": {}}, "'fsdp' to ZeRO-3"),
        ({"resume_from_checkpoint": "x"}, "continues from its newest snapshot; to start from another one"),
        ({"qqqq": 1}, "docs/trainer.md lists its keys"),
    ],
)
def test_a_near_miss_says_what_to_write_instead(document, advice):
    with pytest.raises(ConfigError) as refused:
        parse_config(document)
    assert advice in str(refused.value)
    assert refused.value.field in document


def test_advised_names_exist():
    known = [each.name for each in fields(TrainerConfig)]
    meant = {name for name in near_misses._FIELDS.values() if not name.startswith("--")}
    assert meant <= set(known)
    assert near_misses._FIELDS.keys().isdisjoint(known)
    assert near_misses._FIELD_ADVICE.keys().isdisjoint(known)


@pytest.mark.parametrize("field", [field.name for field in fields(TrainerConfig)])
def test_no_message_about_a_value_names_a_type_of_python(field):
    with pytest.raises(ConfigError) as refused:
        parse_config({field: (1,)})
    assert not re.search(r"must be (int|str|bool|float|dict)\b", str(refused.value)), refused.value


def test_one_error_lists_all_unknown_fields_and_wrong_types():
    with pytest.raises(ConfigError) as refused:
        parse_config({"globl_batch": 4, "steps": "many", "lr": 1e-3})
    assert str(refused.value).count("\n") == 2
    assert "globl_batch: is not a field" in str(refused.value)
    assert "steps: is 'many', must be a whole number" in str(refused.value)
    assert "lr: is not a field of the trainer; did you mean learning_rate?" in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strategy", "magic"),
        ("shard_size", 0),
        ("wrap", ">=10X"),
        ("wrap", "Block,"),
        ("activation_checkpointing", "every-0"),
        ("precision", "fp8"),
        ("compile", "fast"),
        ("reduce_precision", "fp8"),
        ("gradient_sync", "never"),
        ("peak_tflops", 0),
        ("tensorboard", "logs"),
        ("profile", "10"),
        ("profile", "0:3"),
        ("profile", "5:4"),
        ("bucket_mb", 0),
        ("bucket_mb", float("nan")),
        ("prefetch_blocks", -1),
        ("static_graph", "yes"),
        ("optimizer_impl", "magic"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(field, value):
    with pytest.raises(ConfigError) as refused:
        parse_config({field: value})
    assert refused.value.field == field


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(ConfigError, match="cpu_offload: needs a sharded strategy"):
        parse_config({"strategy": "no_shard", "cpu_offload": True})
    with pytest.raises(ConfigError, match="gradient_sync: 'step' does not work with static_graph"):
        parse_config({"strategy": "ddp", "static_graph": True, "gradient_sync": "step"})


def test_short_texts_are_parsed():
    assert parse_wrap(">=1.5M") == Wrap(min_parameters=1_500_000)
    assert parse_wrap("Block,Head") == Wrap(class_names=("Block", "Head"))
    assert parse_checkpointing("every-3") == Checkpointing(every=3)
    assert parse_checkpointing("none") is None
    assert parse_config({"wrap": ["Block", "Head"]}).wrap == "Block,Head"
    assert parse_config({"compile": True}).compile == "default"


def test_a_rendered_configuration_has_only_what_differs_from_the_defaults():
    assert render_config(TrainerConfig()) == {"strategy": "auto"}
    document = {"strategy": "zero2", "snapshot_interval": 50, "compile": True, "task_config": {"a": [1]}}
    config = parse_config({**document, "task": "m:f", "steps": 300})
    reported = render_config(config)
    assert reported == {**document, "snapshot_interval": "50", "compile": "default", "task": "m:f"}
    assert parse_config(reported) == config


def test_the_reference_lists_every_key_with_its_default():
    keys = REFERENCE.partition("## Keys")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", keys, flags=re.MULTILINE))
    texts = {True: "`true`", False: "`false`", None: "none"}
    defaults = asdict(TrainerConfig())
    assert rows == {
        name: texts[value] if isinstance(value, bool | None) else f"`{value}`" for name, value in defaults.items()
    }


def test_the_reference_lists_every_name_of_a_strategy():
    assert {name for name in STRATEGY_ALIASES if f"`{name}`" in REFERENCE} == set(STRATEGY_ALIASES)
