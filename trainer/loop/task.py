"""A task: a model, its data and its loss. The loop knows nothing else about what it trains.

A job's `task: "my_task:task"` names a function of the user. It gets `task_config` and returns a dictionary:

    model      () -> torch.nn.Module
    data       a dataset with __len__ and __getitem__, a DataLoader, or (step, microbatch) -> batch
    loss       (model, batch) -> the mean over the batch's samples, or (sum, weight)
    weight     optional: (batch) -> its weight; then `loss` returns the sum alone
    optimizer  optional: (parameters) -> torch.optim.Optimizer; else AdamW as the configuration says
    schedule   optional: (step) -> factor of the learning rate; else the configuration's schedule, or with your own
               optimizer a constant 1
    wrap       optional: module classes to shard and recompute as units
    evaluate   optional: a dataset; its loss is reported as `evaluation_loss`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.contract.config import TrainerConfig
from trainer.data.datasets import build_evaluation, build_source
from trainer.data.seeds import seed_all, seed_of
from trainer.data.source import Source
from trainer.errors import TaskError
from trainer.loop.evaluation import Evaluation
from trainer.loop.language import Language
from trainer.model.initial import Draft, draft_model

BuildOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_REQUIRED = ("model", "data", "loss")
_OPTIONAL = ("weight", "optimizer", "schedule", "wrap", "evaluate")
_CALLABLE = ("model", "loss", "weight", "optimizer", "schedule")


@dataclass(frozen=True, kw_only=True)
class Task:
    """`loss` returns the summed loss of a microbatch and its weight, from a model, a batch and its number of samples.

    The loss of a step is the sum of these losses divided by the sum of the weights.

    `sample_weight` is the expected weight of a sample. Gradients are divided by it at first, and corrected once the
    real weight of the batch is known.
    """

    name: str
    source: Source
    draft: Callable[[], Draft]
    loss: Callable[[nn.Module, object, int], tuple[Tensor, Tensor | float]]
    sample_weight: float = 1.0
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None  # forward and backward pass; None: count them
    is_random: bool = True  # the loss draws random numbers, as dropout does
    optimizer: BuildOptimizer | None = None
    schedule: Callable[[int], float] | None = None
    wrap: tuple[type[nn.Module], ...] | None = None
    evaluation: Evaluation | None = None


def open_task(config: TrainerConfig) -> Task:
    """Raises TaskError and DataError with one line. Other exceptions of the user's code propagate."""
    if config.task is not None:
        return _open_own(config.task, config)
    language = Language(config)
    return Task(
        name=repr(config.data),
        source=language,
        draft=language.draft,
        loss=language.loss,
        sample_weight=config.seq_len,
        tokens_per_sample=config.seq_len,
        flops_per_sample=language.flops_per_sample,
        is_random=config.dropout > 0,
    )


def _open_own(name: str, config: TrainerConfig) -> Task:
    call = _find(name)
    seed_all(seed_of("task", config.seed))  # a process that has run before must draw what a new one draws
    parts = _checked(name, call(config.task_config))
    build, loss, weight, seed = parts["model"], parts["loss"], parts.get("weight"), config.seed
    source = build_source(parts["data"], config)
    return Task(
        name=name,
        source=source,
        draft=lambda: draft_model(build, seed),
        loss=_OwnLoss(loss, weight),
        optimizer=parts.get("optimizer"),
        schedule=parts.get("schedule"),
        wrap=None if parts.get("wrap") is None else tuple(parts["wrap"]),
        evaluation=None if parts.get("evaluate") is None else _evaluation(parts["evaluate"], config),
    )


def _evaluation(data: object, config: TrainerConfig) -> Evaluation:
    source, length = build_evaluation(data, config)
    return Evaluation(source, length)


def _find(name: str) -> Callable[[Mapping[str, object]], object]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        raise TaskError(f"task {name!r}: there is no module {error.name} in the job's workdir") from None
    function: Callable[[Mapping[str, object]], object] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise TaskError(f"task {name!r}: {module.__file__} has no function {function_name}")
    return function


def _checked(name: str, parts: object) -> dict[str, Any]:
    if not isinstance(parts, Mapping):
        raise TaskError(f"task {name!r}: returned a {type(parts).__name__}, must return a dictionary")
    missing = [key for key in _REQUIRED if parts.get(key) is None]
    unknown = [str(key) for key in parts if key not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        wrong = f"has no {missing[0]!r}" if missing else f"has a key {unknown[0]!r}"
        keys = f"{', '.join(_REQUIRED)}, and optionally {', '.join(_OPTIONAL)}"
        raise TaskError(f"task {name!r}: the returned dictionary {wrong}; the keys are {keys}")
    for key in _CALLABLE:
        if parts.get(key) is not None and not callable(parts[key]):
            raise TaskError(f"task {name!r}: {key} is a {type(parts[key]).__name__}, must be a function")
    if isinstance(parts["model"], nn.Module):
        kind = type(parts["model"]).__name__
        raise TaskError(f"task {name!r}: model is a {kind}; give a function that builds it: lambda: {kind}(...)")
    return dict(parts)


class _OwnLoss:
    """Convert the three forms of a user's loss to a sum and a weight."""

    def __init__(self, loss: Callable[[nn.Module, object], object], weight: Callable[[object], float] | None) -> None:
        self._loss, self._weight = loss, weight

    def __call__(self, model: nn.Module, batch: object, count: int) -> tuple[Tensor, Tensor | float]:
        found = self._loss(model, batch)
        if isinstance(found, tuple) and len(found) == 2:
            return _scalar(found[0]), found[1]
        value = _scalar(found)
        if self._weight is not None:
            return value, self._weight(batch)
        return value * count, float(count)


def _scalar(value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.dim():
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TaskError(f"loss: returned {found}, must return one number: a mean, or (sum, weight)")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise TaskError("loss: depends on no parameter of the model; was it detached?")
    return value
