"""Supervision for any training script, in five lines.

    from trainer.supervised import Supervised

    run = Supervised()                                      # reads its place from the environment
    state = run.restore(model=model, optimizer=optimizer)   # the newest verified snapshot, any world size
    for step in range(state.step, steps):
        ...
        run.step(step, loss=loss)                           # progress; a snapshot when one is due; an orderly stop

Or with files of the script's own, torch's or not:

    folder = run.latest()                                   # of the newest verified snapshot, or None
    for step in range(start, steps):
        ...
        run.step(step, loss=loss)
        if run.should_save:                                 # equal on all ranks
            with run.slot() as folder:                      # all ranks enter; committed when all have left
                save(folder / "model.bin")
        if run.should_stop:
            raise SystemExit(run.STOPPED)

Outside a job nothing is restored, reported or due. Importing this takes about a millisecond and imports no torch; what
a job needs beyond it is imported there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from trainer.script.session import Script

_JOB_DIR = "ORCHESTRATOR_JOB_DIR"  # as contract/env.py has it


@dataclass(frozen=True)
class Restored:
    """Where the script goes on: `step` completed steps, and the folder of the snapshot, None at the start."""

    step: int = 0
    folder: Path | None = None


class Supervised:
    """`steps` is the whole of them, if that is known; `interval` and `keep` default to the job's `snapshot` section.

    In a job it takes over SIGTERM, which sets `should_stop` on all ranks after the next step.
    """

    STOPPED = 143  # the exit code of a script that was asked to stop, as a shell has it for SIGTERM

    def __init__(
        self,
        *,
        steps: int | None = None,
        interval: str | None = None,
        keep: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.should_save = False  # a snapshot is due after this step
        self.should_stop = False  # the job is to end after this step, with exit code STOPPED
        self._steps, self._done = steps, 0
        self._restored: Restored | None = None
        self._registered: dict[str, object] = {}
        self._script = _attend(environ, steps, interval, keep) if environ.get(_JOB_DIR) else None

    @property
    def is_active(self) -> bool:
        """Whether this is a job at all."""
        return self._script is not None

    @property
    def done(self) -> int:
        """Completed steps."""
        return self._done

    @property
    def saved_step(self) -> int | None:
        """The newest step that this generation has a committed snapshot of."""
        return None if self._script is None else self._script.saved_step

    def latest(self) -> Path | None:
        """The folder of the newest verified snapshot of this job, or None. All ranks call it, and get the same.

        Raises SnapshotError when there are snapshots and none is whole, StaleTerm when a later generation has begun.
        """
        return self._begin().folder

    def restore(self, **objects: object) -> Restored:
        """Fill models, optimizers and whatever has a state_dict from the newest verified snapshot, if there is one.

        `step` saves them when that is due. Optimizers are kept by parameter name, so that any number of ranks can go
        on. Raises as `latest` does.
        """
        restored, self._registered = self._begin(), objects
        if self._script is not None and restored.folder is not None and objects:
            self._script.load(objects, restored.folder)
        return restored

    def step(self, step: int, *, loss: SupportsFloat | None = None, **metrics: SupportsFloat) -> None:
        """Report that step `step` (from 0) is done, and find out, with all ranks, what is due after it.

        What `restore` was given hears of it by its `step_done`, if it has one, as trainer.script.sampler's has, and is
        saved when that is due. A stop ends the script here by SystemExit. Raises SnapshotError when the last step
        cannot be saved, and StaleTerm.
        """
        self._done = step + 1
        for subject in self._registered.values():
            if callable(step_done := getattr(subject, "step_done", None)):
                step_done()
        if self._script is None:
            return
        self._script.report(self._done, metrics if loss is None else {"loss": loss, **metrics})
        self.should_save, self.should_stop = self._script.decide(self._done)
        if self._registered:
            is_last = self._done == self._steps
            if self.should_save or is_last:
                self._script.save(self._registered, self._done, is_last=is_last)
            if self.should_stop and not is_last:
                raise SystemExit(self.STOPPED)

    def evaluating(self) -> AbstractContextManager[None]:
        """Around an evaluation: it may take longer than a step without being taken for a hang."""
        return nullcontext() if self._script is None else self._script.evaluating()

    def slot(self) -> AbstractContextManager[Path]:
        """The folder for the snapshot of the steps so far. Every rank enters; it counts once all have left.

        A snapshot that cannot be committed is told as an event and costs nothing else. Raises StaleTerm when a later
        generation has begun. Outside a job the folder is `./snapshots/step-<n>`, which nobody commits.
        """
        if self._script is not None:
            return self._script.slot(self._done)
        folder = Path("snapshots", f"step-{self._done:08d}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return nullcontext(folder)

    def _begin(self) -> Restored:
        if self._restored is None:
            step, folder = (0, None) if self._script is None else self._script.begin()
            self._restored, self._done = Restored(step, folder), step
        return self._restored


def _attend(environ: Mapping[str, str], steps: int | None, interval: str | None, keep: int | None) -> Script:
    from trainer.script.session import Script  # noqa: PLC0415  # outside a job a script pays for none of it

    return Script(environ, steps=steps, interval=interval, keep=keep)
