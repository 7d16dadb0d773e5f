"""Supervision for Accelerate, by its own `save_state` and `load_state`.

    run = Elastic(accelerator)
    start = run.restore()                  # after accelerator.prepare
    for step in range(start, steps):
        ...
        run.step(step, loss=loss)          # progress; a snapshot when one is due; a clean stop

To continue within an epoch, pass the loader to `accelerator.skip_first_batches` with the number of batches that
`start` steps have used.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

from accelerate import Accelerator

from trainer.supervised import Supervised


class Elastic:
    """`options` are those of Supervised. Outside a job it does nothing. All ranks call every method."""

    def __init__(self, accelerator: Accelerator, **options: Any) -> None:
        self.run = Supervised(**options)
        self._accelerator = accelerator

    def restore(self) -> int:
        """Load the newest verified snapshot, if there is one, and return the number of completed steps."""
        state = self.run.restore()
        if state.folder is not None:
            self._accelerator.load_state(str(state.folder))
        return state.step

    def step(self, step: int, *, loss: SupportsFloat | None = None, **metrics: SupportsFloat) -> None:
        """Report that step `step` (from 0) is done. Saves a snapshot that is due. Raises SystemExit after a stop."""
        self.run.step(step, loss=loss, **metrics)
        if self.run.should_save:
            self.save()
        if self.run.should_stop:
            raise SystemExit(self.run.STOPPED)

    def save(self) -> None:
        """Save a snapshot of the steps so far, unless there is one. Call it at the end of a script."""
        if self.run.is_active and self.run.saved_step != self.run.done:
            with self.run.slot() as folder:
                self._accelerator.save_state(str(folder))
