"""The bundled trainer's configuration: checked by the service at submission and by the trainer at start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from trainer.contract.near_misses import advise_field, advise_value
from trainer.contract.shapes import SHAPES

STRATEGIES = ("auto", "ddp", "fsdp", "shard_grad_op", "hsdp")
# Their names in classic FSDP's ShardingStrategy, in ZeRO and in DeepSpeed.
STRATEGY_ALIASES = {
    "no_shard": "ddp",
    "zero0": "ddp",
    "zero2": "shard_grad_op",
    "zero3": "fsdp",
    "full_shard": "fsdp",
    "fsdp2": "fsdp",
    "hybrid_shard": "hsdp",
    "deepspeed_stage_2": "shard_grad_op",
    "deepspeed_stage_3": "fsdp",
}
STRATEGY_REFUSALS = {
    "tensor_parallel": "cannot split single layers yet: use fsdp, and hsdp on several nodes",
    "pipeline_parallel": "cannot split a model into stages yet: use fsdp, and hsdp on several nodes",
    "zero1": "is not offered: shard_grad_op communicates as much and needs less memory",
    "deepspeed": "is not used: shard_grad_op corresponds to its stage 2 and fsdp to its stage 3",
    "data_parallel": "drives all devices from one process: use ddp, one worker for each device",
}
POWERSGD_REFUSAL = (
    "powersgd keeps a separate error on each rank: the curve would depend on the number of ranks; use fp16 or bf16"
)
_REFUSED_ALIASES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "pipeline": "pipeline_parallel",
    "dp": "data_parallel",
    "dataparallel": "data_parallel",
    "deepspeed_stage_1": "zero1",
}
PRESETS = tuple(SHAPES)
PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
OPTIMIZER_IMPLS = ("fused", "foreach", "plain")
REDUCE_PRECISIONS = ("auto", "bf16", "fp16")
GRADIENT_SYNCS = ("auto", "step", "microbatch")
COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")
SNAPSHOT_MODES = ("async", "sync")
_SECONDS = re.compile(r"^(\d+(?:\.\d+)?)s$")
_EVERY = re.compile(r"^every-([1-9]\d{0,3})$")
_SIZE = re.compile(r"^>=(\d+(?:\.\d+)?)([KMG]?)$")
_CLASS_NAMES = re.compile(r"^[A-Za-z_]\w*(?:,[A-Za-z_]\w*)*$")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_WINDOW = re.compile(r"^(\d{1,12}):(\d{1,12})$", re.ASCII)
_TASK = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", re.ASCII)
_NAMES_OF_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "dict": "a mapping",
}
_NUMBERS_OR_WORDS = ("snapshot_interval", "snapshot_memory", "data_workers")
_BUNDLED_TASK_FIELDS = ("model", "preset", "data", "seq_len", "dropout")


class ConfigError(ValueError):
    """A field of the configuration is wrong. `field` names it; the message says what was found and what is allowed.

    If several fields are wrong, the message has one line for each.
    """

    def __init__(self, field: str, message: str, others: Sequence[ConfigError] = ()) -> None:
        self.field = field
        self.own_message, self.others = message, tuple(others)
        self.message = "\n".join([message, *(str(other) for other in others)])
        super().__init__(f"{field}: {self.message}")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training run. A batch is `global_batch` sequences of `seq_len` tokens whatever the number of ranks."""

    model: str = "gpt"
    preset: str = "nano"
    data: str = "stdlib"  # "stdlib", a text file, a folder of text files, or a .bin file of tokens
    steps: int = 300
    global_batch: int = 64  # sequences per optimizer step
    micro_batch: int | None = None  # sequences per forward pass; divides global_batch; None: the largest divisor <= 8
    seq_len: int = 128
    strategy: str = "auto"
    shard_size: int | None = None  # hsdp: ranks that share one copy of the model; None: the ranks of a node
    wrap: str = "auto"  # units to shard, recompute and compile: "auto", "Block,Head" or ">=10M" parameters
    precision: str = "fp32"
    activation_checkpointing: str = "none"  # "none", "full", "every-2" (every second block) or "selective"
    compile: str = "none"  # each block: "none", "default", "reduce-overhead" (CUDA graphs) or "max-autotune"
    cpu_offload: bool = False  # sharded strategies: parameters, gradients and optimizer live in host memory
    prefetch_blocks: int = 0  # sharded strategies: blocks gathered ahead; 0: FSDP's own default
    gradient_sync: str = "auto"  # once a "step" or after each "microbatch"; auto: ddp step, sharded microbatch
    reduce_precision: str = "auto"  # type that gradients are sent in; auto: as they are computed, at least fp32
    bucket_mb: float = 25.0  # ddp: size of the gradients that are sent together
    gradient_as_bucket_view: bool = True  # ddp: gradients lie in the buckets themselves
    broadcast_buffers: bool = True  # ddp: send rank 0's buffers before each step
    static_graph: bool = False  # ddp: the same parameters are used in every step
    find_unused_parameters: bool = False  # ddp: a step may leave parameters unused
    sync_batchnorm: bool = False  # batch statistics over all ranks; accelerators only
    optimizer_impl: str = "fused"  # AdamW's kernel: "fused", "foreach" or "plain"
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    final_learning_rate: float = 1e-4  # at the end of the cosine
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    dropout: float = 0.0
    seed: int = 0
    snapshot_interval: str = "auto"  # "auto", a number of steps, or seconds as "30s"
    snapshot_keep: int = 3  # the number of good snapshots to keep, newest first
    snapshot_keep_every: int | None = None  # also keep every snapshot whose step is a multiple of this
    snapshot_memory: str = "auto"  # copies in the nodes' memory: as snapshot_interval, or "off"
    keep_survivors: bool = True  # on CPUs: when the group changes, other workers keep their processes
    snapshot_mode: str = "async"  # "async": written while training continues; "sync": training waits for the commit
    task: str | None = None  # "module:function" of the user, see docs/scripts.md; None: the bundled language model
    task_config: dict[str, object] = field(default_factory=dict)  # the argument of that function
    data_workers: str = "auto"  # processes per rank that read ahead; "auto": started if steps wait for data
    skip_bad_samples: int = 0  # the number of unreadable samples that may be replaced by the next ones
    evaluate_every: int | None = None  # steps; None: only after the last step
    peak_tflops: float | None = None  # of one device in this precision, for MFU; None: looked up by the device's name
    tensorboard: bool = False  # write TensorBoard files to the job's folder
    profile: str | None = None  # a trace of each rank over steps "first:last", both included

    def __post_init__(self) -> None:
        _one_of("model", self.model, ("gpt",))
        _one_of("preset", self.preset, PRESETS)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("optimizer_impl", self.optimizer_impl, OPTIMIZER_IMPLS)
        _require("reduce_precision", self.reduce_precision != "powersgd", POWERSGD_REFUSAL)
        _one_of("reduce_precision", self.reduce_precision, REDUCE_PRECISIONS)
        _one_of("gradient_sync", self.gradient_sync, GRADIENT_SYNCS)
        _one_of("compile", self.compile, COMPILE_MODES)
        parse_wrap(self.wrap)
        parse_checkpointing(self.activation_checkpointing)
        strategy = parse_strategy(self.strategy)
        _require("shard_size", self.shard_size is None or self.shard_size >= 1, "must be at least 1")
        _require("cpu_offload", not (self.cpu_offload and strategy == "ddp"), "needs a sharded strategy, not ddp")
        _require("prefetch_blocks", self.prefetch_blocks >= 0, f"is {self.prefetch_blocks}, must be at least 0")
        _require("bucket_mb", 0 < self.bucket_mb <= 65536, f"is {self.bucket_mb}, must be above 0 and at most 65536")
        is_static_step = self.static_graph and self.gradient_sync == "step" and strategy in ("auto", "ddp")
        _require("gradient_sync", not is_static_step, "'step' does not work with static_graph: leave it at 'auto'")
        _one_of("snapshot_mode", self.snapshot_mode, SNAPSHOT_MODES)
        for name in ("steps", "global_batch", "seq_len", "snapshot_keep"):
            _require(name, getattr(self, name) >= 1, f"is {getattr(self, name)}, must be at least 1")
        for name in ("learning_rate", "final_learning_rate", "weight_decay", "grad_clip", "dropout"):
            value = getattr(self, name)
            _require(name, math.isfinite(value) and value >= 0, f"is {value}, must be a finite number of at least 0")
        _require("dropout", self.dropout < 1, f"is {self.dropout}, must be below 1")
        _require("warmup_steps", self.warmup_steps >= 0, f"is {self.warmup_steps}, must be at least 0")
        _require("seed", 0 <= self.seed < 2**63, f"is {self.seed}, must be in 0 .. 2**63 - 1")
        _require("data", bool(self.data) and "\0" not in self.data, "must name a file, a folder or 'stdlib'")
        if self.micro_batch is not None:
            _require(
                "micro_batch",
                self.micro_batch >= 1 and self.global_batch % self.micro_batch == 0,
                f"is {self.micro_batch}, must divide global_batch = {self.global_batch}",
            )
        keep_every = self.snapshot_keep_every
        _require("snapshot_keep_every", keep_every is None or keep_every >= 1, f"is {keep_every}, must be at least 1")
        parse_interval(self.snapshot_interval)
        parse_memory_interval(self.snapshot_memory)
        parse_workers(self.data_workers)
        _require("skip_bad_samples", self.skip_bad_samples >= 0, f"is {self.skip_bad_samples}, must be at least 0")
        every = self.evaluate_every
        _require("evaluate_every", every is None or every >= 1, f"is {every}, must be at least 1")
        peak = self.peak_tflops
        _require("peak_tflops", peak is None or 0 < peak < math.inf, f"is {peak}, must be a finite number above 0")
        if self.profile is not None:
            parse_profile(self.profile)
        if self.task is not None:
            self._check_task(self.task)

    def _check_task(self, task: str) -> None:
        _require("task", bool(_TASK.match(task)), f"is {task!r}, must be 'module:function'")
        for name in _BUNDLED_TASK_FIELDS:
            is_default = getattr(self, name) == type(self).__dataclass_fields__[name].default
            _require(name, is_default, f"applies to the bundled task only; pass it to {task} in task_config")

    @property
    def sequences_per_microbatch(self) -> int:
        """The size of a microbatch. It depends on the configuration alone, so it is the same at every world size."""
        if self.micro_batch is not None:
            return self.micro_batch
        return max(size for size in range(1, min(8, self.global_batch) + 1) if self.global_batch % size == 0)


def parse_strategy(text: str) -> str:
    """Parse a strategy's name or alias. Raises ConfigError, with advice for strategies that are not offered."""
    name = text.lower().replace("-", "_")
    name = STRATEGY_ALIASES.get(name, name)
    refusal = STRATEGY_REFUSALS.get(_REFUSED_ALIASES.get(name, name))
    _require("strategy", refusal is None, f"{text!r} {refusal}")
    names = (*STRATEGIES, *STRATEGY_ALIASES)
    message = f"is {text!r}, must be one of {', '.join(names)}{advise_value(text, names)}"
    _require("strategy", name in STRATEGIES, message)
    return name


@dataclass(frozen=True)
class Wrap:
    """Which modules count as blocks. Both None: the repeated ones."""

    class_names: tuple[str, ...] | None = None
    min_parameters: int | None = None


def parse_wrap(text: str) -> Wrap:
    """Parse "auto", "Block,Head" (class names) or ">=10M" (parameters). Raises ConfigError."""
    if text == "auto":
        return Wrap()
    if size := _SIZE.match(text):
        return Wrap(min_parameters=round(float(size[1]) * _UNITS[size[2]]))
    _require("wrap", bool(_CLASS_NAMES.match(text)), f"is {text!r}, must be 'auto', class names, or a size as '>=10M'")
    return Wrap(class_names=tuple(text.split(",")))


@dataclass(frozen=True)
class Checkpointing:
    """Every `every`-th block is recomputed from its input. With `keeps_products` it keeps the matrix products."""

    every: int = 1
    keeps_products: bool = False


def parse_checkpointing(text: str) -> Checkpointing | None:
    """Parse "none", "full", "every-2" or "selective"; None means that all activations are kept. Raises ConfigError."""
    if text == "none":
        return None
    if text in ("full", "selective"):
        return Checkpointing(keeps_products=text == "selective")
    match = _EVERY.match(text)
    if match is None:
        message = f"is {text!r}, must be 'none', 'full', 'selective', or 'every-2' for every second block"
        raise ConfigError("activation_checkpointing", message)
    return Checkpointing(every=int(match[1]))


@dataclass(frozen=True)
class Interval:
    """When to take a snapshot. Both None: the trainer chooses from the measured cost."""

    steps: int | None = None
    seconds: float | None = None


def parse_interval(text: str, name: str = "snapshot_interval", words: str = "'auto'") -> Interval:
    """Parse "auto", "50" (steps) or "30s". Raises ConfigError with the name of the field and the words it may be."""
    if text == "auto":
        return Interval()
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return Interval(steps=int(text))
    match = _SECONDS.match(text)
    if match and float(match[1]) > 0:
        return Interval(seconds=float(match[1]))
    raise ConfigError(name, f"is {text!r}, must be {words}, a number of steps, or seconds as '30s'")


def parse_memory_interval(text: str) -> Interval | None:
    """Parse "off" (None), or what `parse_interval` parses. Raises ConfigError."""
    return None if text == "off" else parse_interval(text, "snapshot_memory", "'off', 'auto'")


def parse_workers(text: str) -> int | None:
    """Parse "auto" (None) or a number of processes. Raises ConfigError."""
    if text == "auto":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError("data_workers", f"is {text!r}, must be 'auto' or a number")


def parse_profile(text: str) -> tuple[int, int]:
    """Parse "10:13": the first and the last step of a window, counted from 1. Raises ConfigError."""
    match = _WINDOW.match(text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    _require("profile", 1 <= first <= last, f"is {text!r}, must be the first and the last step, as '10:13'")
    return first, last


def parse_config(document: Mapping[str, object]) -> TrainerConfig:
    """Parse a mapping. Raises one ConfigError for all unknown fields and wrong types, or else for a bad value."""
    known = {known.name: str(known.type) for known in fields(TrainerConfig)}
    values: dict[str, object] = {}
    wrong: list[ConfigError] = []
    for name, value in document.items():
        try:
            _require(str(name), name in known, f"is not a field of the trainer; {advise_field(str(name), known)}")
            values[name] = _typed(name, value, known[name])
        except ConfigError as error:
            wrong.append(error)
    if wrong:
        raise ConfigError(wrong[0].field, wrong[0].message, wrong[1:])
    return TrainerConfig(**values)  # type: ignore[arg-type]  # each value was checked against its field's type


def render_config(config: TrainerConfig) -> dict[str, object]:
    """The mapping that `parse_config` reads back: the strategy, and all fields that differ from their defaults."""
    default, own = asdict(TrainerConfig()), asdict(config)
    return {name: value for name, value in own.items() if name == "strategy" or value != default[name]}


def _typed(name: str, value: object, kind: str) -> object:
    if value is None and "None" in kind:
        return None
    if name in _NUMBERS_OR_WORDS and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if name == "compile" and isinstance(value, bool):
        return "default" if value else "none"
    if name == "wrap" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if (kind.startswith("str") and isinstance(value, str)) or (kind == "bool" and isinstance(value, bool)):
        return value
    if kind.startswith("int") and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind.startswith("dict") and isinstance(value, dict):
        return value
    if kind.startswith("float") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(name, f"is {value!r}, must be {_NAMES_OF_KINDS[kind.partition(' ')[0].partition('[')[0]]}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    message = f"is {value!r}, must be one of {', '.join(allowed)}{advise_value(value, allowed)}"
    _require(name, value in allowed, message)


def _require(name: str, holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(name, message)
