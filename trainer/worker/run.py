"""The objects that stay the same during a generation, and that most parts of the trainer need."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.contract.config import TrainerConfig
from trainer.contract.env import WorkerPlace
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import Waits


@dataclass(frozen=True, kw_only=True)
class Run:
    """One worker of one generation, once its process group has formed."""

    config: TrainerConfig
    place: WorkerPlace
    device: torch.device
    heartbeat: Heartbeat
    waits: Waits

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides and reports for all."""
        return self.place.rank == 0
