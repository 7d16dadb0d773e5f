"""Metrics of a step: speed, time by use, memory. Units are seconds, bytes, and fractions from 0 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer.contract.config import TrainerConfig
from trainer.loop.step import StepResult
from trainer.loop.task import Task
from trainer.parallel.trainee import Trainee
from trainer.snapshot.cadence import Cost
from trainer.snapshot.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class Split:
    """The time of a step on this rank: `data_s + compute_s + communication_s + held_s` is `step_s`.

    If `communication_s` is None, it is not known and part of `compute_s`. `stall_s` is how long training stopped for
    snapshots since the step before. `held_s` is the part of it within this step, waiting for copies.
    """

    step_s: float
    data_s: float
    communication_s: float | None
    held_s: float
    stall_s: float

    @property
    def compute_s(self) -> float:
        return max(0.0, self.step_s - self.data_s - (self.communication_s or 0.0) - self.held_s)


class SnapshotTime:
    """The cost of snapshots since the previous call."""

    def __init__(self, cost: Cost) -> None:
        self._cost, self._stalls_s, self._held_s = cost, 0.0, 0.0

    def split(self, result: StepResult, step_s: float) -> Split:
        stalls_s, held_s = self._cost.all_stalls_s, self._cost.all_held_s
        split = Split(
            step_s=step_s,
            data_s=result.own_data_s,
            communication_s=result.own_communication_s,
            held_s=held_s - self._held_s,
            stall_s=stalls_s - self._stalls_s,
        )
        self._stalls_s, self._held_s = stalls_s, held_s
        return split


@dataclass(frozen=True)
class StepMetrics:
    """`ideal_step_s` is the denominator of MFU, None if unknown."""

    config: TrainerConfig
    task: Task
    trainee: Trainee
    ideal_step_s: float | None

    def describe(self, state: RunState, result: StepResult, split: Split) -> dict[str, float]:
        """Loss, gradient and `data_s` are over all ranks. Other times and memory are of this rank."""
        samples, tokens = self.config.global_batch, self.task.tokens_per_sample
        metrics = {
            "loss": result.loss,
            "samples_per_s" if tokens is None else "tokens_per_s": samples * (tokens or 1) / split.step_s,
            "learning_rate": float(self.trainee.optimizer.param_groups[0]["lr"]),
            "step_s": split.step_s,
            "data_s": result.data_s,
            "compute_s": split.compute_s,
            "snapshot_s": split.stall_s,
        }
        if split.communication_s is not None:
            metrics["communication_s"] = split.communication_s
        if self.ideal_step_s is not None:
            metrics["mfu"] = self.ideal_step_s / split.step_s
        if math.isfinite(result.grad_norm):
            metrics["grad_norm"] = result.grad_norm
        if state.loss_scale.is_on:
            metrics["loss_scale"] = state.loss_scale.factor
        return {**metrics, **_memory(self.trainee.device)}


def _memory(device: torch.device) -> dict[str, float]:
    """Memory of the GPU's allocator. The progress line has the peak, or on a CPU the resident set size."""
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory.memory_stats_as_nested_dict(device)
    return {
        "memory_allocated_bytes": stats["allocated_bytes"]["all"]["current"],
        "memory_peak_bytes": stats["allocated_bytes"]["all"]["peak"],
        "memory_reserved_bytes": stats["reserved_bytes"]["all"]["current"],
    }
