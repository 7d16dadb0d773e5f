"""Exposed communication: how long a rank only communicated, without computing.

Waiting for slower ranks is part of it. It is measured where that is cheap and exact:

* ddp: from the last gradient to the end of the backward pass, when all buckets have arrived, and the wait for the
  all-reduce of the loss; by the clock on a CPU, by events of the stream on an accelerator.
* sharded strategies on CPUs, where every gather and every reduction blocks the host.

It is not measured with copies of shards (hsdp) and with sharding on accelerators, where streams wait for each other
inside torch. A profile shows it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.parallel.strategy import Layout

_Time: TypeAlias = float | torch.cuda.Event
# torch 2.13 deprecates their former names.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CommunicationTimer:
    """Times the exposed communication of one step at a time."""

    def __init__(self, device: torch.device, *, is_known: bool) -> None:
        self._is_host, self.is_known = device.type == "cpu", is_known
        self._begun: _Time | None = None
        self._spans: list[tuple[_Time, _Time]] = []

    def begin(self) -> None:
        """Start to wait. A second `begin` restarts the measurement."""
        if self.is_known:
            self._begun = self._now()

    def end(self) -> None:
        if self._begun is not None:
            self._spans.append((self._begun, self._now()))
            self._begun = None

    def take_s(self) -> float | None:
        """Seconds since the previous call. On a GPU, the queued work must be done."""
        spans, self._spans = self._spans, []
        return sum(_seconds(*span) for span in spans) if self.is_known else None

    def _now(self) -> _Time:
        if self._is_host:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(begun: _Time, ended: _Time) -> float:
    if isinstance(begun, float) and isinstance(ended, float):
        return ended - begun
    assert isinstance(begun, torch.cuda.Event)
    assert isinstance(ended, torch.cuda.Event)
    return float(begun.elapsed_time(ended)) / 1000


def build_communication_timer(layout: Layout, device: torch.device, model: nn.Module) -> CommunicationTimer:
    """Time the collectives of the model's sharded modules from now on."""
    if not layout.is_sharded:
        return CommunicationTimer(device, is_known=True)
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    can_time = all(hasattr(module, "set_custom_all_gather") for module in sharded)  # torch 2.9 and later
    timer = CommunicationTimer(device, is_known=device.type == "cpu" and layout.replicas == 1 and can_time)
    if timer.is_known:
        for module in sharded:
            module.set_custom_all_gather(_TimedGather(timer))  # type: ignore[arg-type]  # two methods make one
            module.set_custom_reduce_scatter(_TimedReduction(timer))  # type: ignore[arg-type]
    return timer


class _Timed:
    def __init__(self, timer: CommunicationTimer) -> None:
        self._timer = timer

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _TimedGather(_Timed):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._timer.begin()
        work: dist.Work | None = _gather(output_tensor, input_tensor, group=group, async_op=async_op)
        self._timer.end()
        return work


class _TimedReduction(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> dist.Work | None:
        self._timer.begin()
        work: dist.Work | None = _reduce(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        self._timer.end()
        return work
