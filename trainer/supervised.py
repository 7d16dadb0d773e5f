"""Supervision for any training script, in five lines.

    from trainer.supervised import Supervised

    run = Supervised()                                      # configured by the environment
    state = run.restore(model=model, optimizer=optimizer)   # the newest verified snapshot, any world size
    for step in range(state.step, steps):
        ...
        run.step(step, loss=loss)                           # reports progress, saves due snapshots, stops cleanly

Or the script writes its own files, with torch or without:

    folder = run.latest()                                   # the newest verified snapshot's folder, or None
    for step in range(start, steps):
        ...
        run.step(step, loss=loss)
        if run.should_save:                                 # equal on all ranks
            with run.slot() as folder:                      # all ranks enter; committed when all have left
                save(folder / "model.bin")
        if run.should_stop:
            raise SystemExit(run.STOPPED)

`reenter(train)` calls a function that trains, and calls it again in the same process when another worker has died.

Outside a job nothing is restored, reported or due. Importing this module takes about a millisecond and imports no
torch. What a job needs is imported only in a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat, TypeVar

if TYPE_CHECKING:
    from trainer.script.session import Script

# Names from contract/env.py, which would slow the import down.
_JOB_DIR = "ORCHESTRATOR_JOB_DIR"
_REENTRY = "ORCHESTRATOR_REENTRY"

T = TypeVar("T")


@dataclass(frozen=True)
class Restored:
    """Where the script continues: completed steps, and the snapshot's folder.

    There is no folder at the start, and none if the state came from the memory of a surviving worker.
    """

    step: int = 0
    folder: Path | None = None


class Supervised:
    """`steps` is the total number of steps, if known. `interval` and `keep` default to the job's `snapshot` section.

    In a job this class handles SIGTERM: it sets `should_stop` on all ranks after the next step.
    """

    STOPPED = 143  # exit code of a script that stops on request; a shell reports the same for SIGTERM

    def __init__(
        self,
        *,
        steps: int | None = None,
        interval: str | None = None,
        keep: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.should_save = False  # a snapshot is due after this step
        self.should_stop = False  # the script must end after this step, with exit code STOPPED
        self._steps, self._done = steps, 0
        self._restored: Restored | None = None
        self._registered: dict[str, object] = {}
        self._script = _open_script(environ, steps, interval, keep) if environ.get(_JOB_DIR) else None

    @property
    def is_active(self) -> bool:
        """Whether the script runs in a job."""
        return self._script is not None

    @property
    def done(self) -> int:
        """Completed steps."""
        return self._done

    @property
    def saved_step(self) -> int | None:
        """The newest step of which this generation has committed a snapshot."""
        return None if self._script is None else self._script.saved_step

    def latest(self) -> Path | None:
        """The folder of the job's newest verified snapshot, or None. All ranks must call it, and get the same result.

        Raises SnapshotError if snapshots exist and none is intact, StaleTerm if a later generation has begun.
        """
        return self._begin({}).folder

    def restore(self, **objects: object) -> Restored:
        """Load the newest verified snapshot, if any, into models, optimizers and other objects with a state_dict.

        `step` saves the same objects when a snapshot is due. Optimizer state is stored by parameter name, so that any
        number of ranks can continue. Raises as `latest` does.
        """
        restored, self._registered = self._begin(objects), objects
        if self._script is not None and objects:
            self._script.load(objects)
        return restored

    def step(self, step: int, *, loss: SupportsFloat | None = None, **metrics: SupportsFloat) -> None:
        """Report that step `step` (from 0) is complete, and agree with all ranks on what is due after it.

        The objects given to `restore` are saved if a snapshot is due, and after the last step. Those with a method
        `step_done`, such as trainer.script.sampler's, get a call. If the objects were given and a stop is due, this
        raises SystemExit. Raises SnapshotError if the last step cannot be saved, and StaleTerm.
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
        """Enter this context for an evaluation, so that a long one does not count as a hang."""
        return nullcontext() if self._script is None else self._script.evaluating()

    def slot(self) -> AbstractContextManager[Path]:
        """The folder for a snapshot after the steps so far. Every rank must enter; it is committed once all have left.

        A snapshot that cannot be committed becomes an event, not an error. Raises StaleTerm if a later generation has
        begun. Outside a job the folder is `./snapshots/step-<n>` and nothing is committed.
        """
        if self._script is not None:
            return self._script.slot(self._done)
        folder = Path("snapshots", f"step-{self._done:08d}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return nullcontext(folder)

    def _begin(self, objects: Mapping[str, object]) -> Restored:
        if self._restored is None:
            step, folder = (0, None) if self._script is None else self._script.begin(objects)
            self._restored, self._done = Restored(step, folder), step
        return self._restored


def reenter(train: Callable[[], T]) -> T:
    """Call `train`, and call it again in the same process if it loses a peer and the job continues.

    `train` makes its Supervised, its process group, its model and everything else that belongs to a group, and calls
    `restore` with a torch optimizer among the objects. If a survivor hands its state over, no completed step is
    repeated. This works in a job on CPUs whose ranks are all on one node. Elsewhere `reenter` only calls `train`.
    Returns and raises what `train` does.
    """
    if not os.environ.get(_REENTRY):
        return train()
    from trainer.contract.env import parse_place  # noqa: PLC0415  # only a job pays for the imports
    from trainer.elastic.health.devices import has_gpu  # noqa: PLC0415
    from trainer.elastic.workers.reentry import open_reentry  # noqa: PLC0415

    place = parse_place(os.environ)
    reentry = None if find_spec("torch") is None else open_reentry(place, has_device=has_gpu(os.environ))
    if reentry is None:
        return train()
    from trainer.script.survivor import run_again  # noqa: PLC0415

    return run_again(train, place, reentry)


def _open_script(environ: Mapping[str, str], steps: int | None, interval: str | None, keep: int | None) -> Script:
    from trainer.script.session import Script  # noqa: PLC0415  # only a job pays for the import

    return Script(environ, steps=steps, interval=interval, keep=keep)
