"""Supervision for Hugging Face's Trainer, as a callback.

    elastic = Elastic()
    trainer = Trainer(..., callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.checkpoint())

The Trainer writes its checkpoints as usual. The files of each are linked into a verified snapshot, or copied if they
cannot be linked. With `save_strategy="no"` only the job's `snapshot` section says when to save.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.supervised import Supervised


class Elastic(TrainerCallback):
    """`options` are those of Supervised. Outside a job it does nothing. The loss is the newest in the log."""

    def __init__(self, **options: Any) -> None:
        self.run = Supervised(**options)

    def checkpoint(self) -> str | None:
        """The `resume_from_checkpoint` for `train`: the newest verified checkpoint, or None. All ranks call it."""
        folder = self.run.latest()
        return None if folder is None else str(folder)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        losses = [entry["loss"] for entry in state.log_history[-1:] if "loss" in entry]
        self.run.step(state.global_step - 1, **({"loss": losses[0]} if losses else {}))
        is_last = self.run.is_active and state.global_step == state.max_steps
        control.should_save = control.should_save or self.run.should_save or is_last
        control.should_training_stop = control.should_training_stop or self.run.should_stop
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.run.is_active or self.run.saved_step == state.global_step:
            return
        if dist.is_initialized():
            dist.barrier()  # every rank has written its part
        with self.run.slot() as folder:
            if state.is_world_process_zero:
                _link(Path(str(args.output_dir), f"checkpoint-{state.global_step}"), folder)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.run.should_stop and state.global_step < state.max_steps:
            raise SystemExit(self.run.STOPPED)


def _link(source: Path, target: Path) -> None:
    """Link the files, which no longer change: links take no space, and survive the Trainer's own rotation."""
    shutil.copytree(source, target, copy_function=_link_file, dirs_exist_ok=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
