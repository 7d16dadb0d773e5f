"""The bundled trainer's configuration: checked by the service at submission and by the trainer at start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

STRATEGIES = ("auto", "ddp", "fsdp")
PRESETS = ("nano", "micro", "124m", "1b", "8b")
PRECISIONS = ("fp32", "bf16")
_SECONDS = re.compile(r"^(\d+(?:\.\d+)?)s$")


class ConfigError(ValueError):
    """A field of the configuration is wrong: `field` names it, the text says what was found and what is allowed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


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
    precision: str = "fp32"
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    final_learning_rate: float = 1e-4  # at the end of the cosine
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    dropout: float = 0.0
    seed: int = 0
    snapshot_interval: str = "auto"  # "auto", a number of steps, or seconds as "30s"
    snapshot_keep: int = 3

    def __post_init__(self) -> None:
        _one_of("model", self.model, ("gpt",))
        _one_of("preset", self.preset, PRESETS)
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("precision", self.precision, PRECISIONS)
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
        parse_interval(self.snapshot_interval)

    @property
    def sequences_per_microbatch(self) -> int:
        """The microbatch: fixed by the configuration alone, so that it is the same at every world size."""
        if self.micro_batch is not None:
            return self.micro_batch
        return max(size for size in range(1, min(8, self.global_batch) + 1) if self.global_batch % size == 0)


@dataclass(frozen=True)
class Interval:
    """When to take a snapshot. Both None: the trainer chooses from the measured cost."""

    steps: int | None = None
    seconds: float | None = None


def parse_interval(text: str) -> Interval:
    """Parse "auto", "50" (steps) or "30s". Raises ConfigError."""
    if text == "auto":
        return Interval()
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return Interval(steps=int(text))
    match = _SECONDS.match(text)
    if match and float(match[1]) > 0:
        return Interval(seconds=float(match[1]))
    raise ConfigError("snapshot_interval", f"is {text!r}, must be 'auto', a number of steps, or seconds as '30s'")


def parse_config(document: Mapping[str, object]) -> TrainerConfig:
    """Parse a mapping. Raises ConfigError for an unknown field, a wrong type or a value out of range."""
    known = {field.name: str(field.type) for field in fields(TrainerConfig)}
    values: dict[str, object] = {}
    for name, value in document.items():
        if name not in known:
            raise ConfigError(str(name), f"is not a field of the trainer; there are {', '.join(known)}")
        values[name] = _typed(name, value, known[name])
    return TrainerConfig(**values)  # type: ignore[arg-type]  # each value was checked against its field's type


def _typed(name: str, value: object, kind: str) -> object:
    if value is None and "None" in kind:
        return None
    if name == "snapshot_interval" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if kind == "str" and isinstance(value, str):
        return value
    if kind.startswith("int") and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(name, f"is {value!r}, must be {kind.replace(' | None', '')}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    _require(name, value in allowed, f"is {value!r}, must be one of {', '.join(allowed)}")


def _require(name: str, holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(name, message)
