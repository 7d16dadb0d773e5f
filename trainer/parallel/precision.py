"""Number formats of parameters and arithmetic, and the loss scale of fp16."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from trainer.errors import NonFiniteLoss

# torch.amp.GradScaler's defaults; the method is that of Micikevicius et al., Mixed Precision Training, 2018.
_FIRST_FACTOR, _GROW_AFTER = 2.0**16, 2000
_LEAST_FACTOR = 2.0**-16


@dataclass(frozen=True)
class Precision:
    """`arithmetic` None: operations use the format of the parameters."""

    parameters: torch.dtype
    arithmetic: torch.dtype | None = None

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast for ddp. Sharded blocks use FSDP's mixed-precision policy."""
        return torch.autocast(device.type, dtype=self.arithmetic, enabled=self.arithmetic is not None)


PRECISIONS = {
    "fp32": Precision(torch.float32),
    "bf16": Precision(torch.float32, torch.bfloat16),
    "fp16": Precision(torch.float32, torch.float16),
    "fp64": Precision(torch.float64),  # for proofs of equality
}
REDUCE_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class LossScale:
    """A power of two that keeps fp16 gradients from underflow. Constant 1 for other precisions.

    The gradient's norm is equal on every rank, and so is every decision that follows from it.
    """

    def __init__(self, precision: str) -> None:
        self.is_on = precision == "fp16"
        self.factor = _FIRST_FACTOR if self.is_on else 1.0
        self.skipped_steps = 0  # the optimizer's step count lags by this
        self._good_steps = 0

    def accepts(self, grad_norm: float) -> bool:
        """Whether to take the step, by the norm before clipping. Adapts the scale.

        Raises NonFiniteLoss when no scale makes the gradient finite.
        """
        if not self.is_on:
            return True
        if math.isfinite(grad_norm):
            self._good_steps += 1
            if self._good_steps == _GROW_AFTER:
                self.factor, self._good_steps = self.factor * 2, 0
            return True
        self.factor, self._good_steps = self.factor / 2, 0
        self.skipped_steps += 1
        if self.factor < _LEAST_FACTOR:
            raise NonFiniteLoss("the gradient overflows fp16 at every loss scale; use bf16 or fp32")
        return False

    def state_dict(self) -> dict[str, float]:
        return {"factor": self.factor, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """A snapshot of another precision has no scale."""
        self.skipped_steps = int(state["skipped_steps"])
        if self.is_on and state["factor"] != 1.0:
            self.factor, self._good_steps = state["factor"], int(state["good_steps"])
