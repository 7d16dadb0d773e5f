"""Supervision for Lightning, as a callback.

    elastic = Elastic()
    trainer = lightning.Trainer(callbacks=[elastic], ...)
    trainer.fit(model, data, ckpt_path=elastic.checkpoint())

Snapshots are Lightning's own checkpoints, saved when the job's `snapshot` section says. With
`enable_checkpointing=False` Lightning saves no others.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from trainer.supervised import Supervised

_FILE = "lightning.ckpt"


class Elastic(Callback):
    """`options` are those of Supervised. Outside a job it does nothing."""

    def __init__(self, **options: Any) -> None:
        self.run = Supervised(**options)
        self._done: int | None = None
        self._evaluation = ExitStack()

    def checkpoint(self) -> str | None:
        """The `ckpt_path` for `fit`: the newest verified checkpoint, or None. All ranks call it."""
        folder = self.run.latest()
        return None if folder is None else str(folder / _FILE)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._done = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_step == self._done:
            return  # gradients accumulate: no optimizer step yet
        self._done = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.run.step(self._done - 1, loss=loss)
        if self.run.should_save:
            with self.run.slot() as folder:
                trainer.save_checkpoint(folder / _FILE)
        if self.run.should_stop:
            raise SystemExit(self.run.STOPPED)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self.run.is_active and self.run.saved_step != trainer.global_step:
            with self.run.slot() as folder:
                trainer.save_checkpoint(folder / _FILE)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._evaluation.enter_context(self.run.evaluating())

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._evaluation.close()
