"""Number formats: what parameters are kept in, what is computed in, and the loss scale that fp16 needs."""

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
    """`arithmetic` None: operations run in the parameters' own format."""

    parameters: torch.dtype
    arithmetic: torch.dtype | None = None

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """For ddp. Sharded blocks cast by a policy of their own."""
        return torch.autocast(device.type, dtype=self.arithmetic, enabled=self.arithmetic is not None)


PRECISIONS = {
    "fp32": Precision(torch.float32),
    "bf16": Precision(torch.float32, torch.bfloat16),
    "fp16": Precision(torch.float32, torch.float16),
    "fp64": Precision(torch.float64),  # for proofs: rounding that a curve cannot show
}
REDUCE_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class LossScale:
    """A power of two that keeps fp16 gradients from vanishing; 1, and never changed, for every other precision.

    The gradient's norm is the same number on every rank, and so is all that follows from it.
    """

    def __init__(self, precision: str) -> None:
        self.is_on = precision == "fp16"
        self.factor = _FIRST_FACTOR if self.is_on else 1.0
        self.skipped_steps = 0  # the optimizer's own count is that much behind the run's
        self._good_steps = 0

    def accepts(self, grad_norm: float) -> bool:
        """Whether the step may be taken, by the norm before clipping; the scale falls or grows accordingly.

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
            raise NonFiniteLoss("the gradient stays infinite in fp16 however small the loss is made; use bf16 or fp32")
        return False

    def state_dict(self) -> dict[str, float]:
        return {"factor": self.factor, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """A run that was not in fp16 has no scale to hand over."""
        self.skipped_steps = int(state["skipped_steps"])
        if self.is_on and state["factor"] != 1.0:
            self.factor, self._good_steps = state["factor"], int(state["good_steps"])
