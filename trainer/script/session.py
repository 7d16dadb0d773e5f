"""A user's own script as a worker of a job: how it begins, what it reports, and what is due after a step.

`trainer.supervised` is the public interface. Ranks use files to communicate before they have a process group.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, SupportsFloat, cast

from trainer.contract import env
from trainer.contract.config import parse_interval
from trainer.contract.env import parse_place
from trainer.contract.manifest import FILES, Manifest, parse_snapshot_name
from trainer.contract.progress import Phase
from trainer.errors import SnapshotError
from trainer.script import script_beginning
from trainer.script.script_beginning import OBJECTS, ScriptBeginning
from trainer.script.script_saver import ScriptSaver
from trainer.snapshot.cadence import Cadence, Cost
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.retries import Retries
from trainer.worker.signals import StopFlag
from trainer.worker.snapshot_requests import SnapshotRequests, desired_of

if TYPE_CHECKING:
    from trainer.script.survivor import Survivor

_KEEP = "3"
_DCP = "dcp"


class Script:
    """All ranks call every method but `report` at the same step."""

    def __init__(
        self, environ: Mapping[str, str], *, steps: int | None, interval: str | None, keep: int | None
    ) -> None:
        self._place = parse_place(environ)
        self._interval = parse_interval(interval or environ.get(env.SNAPSHOT_INTERVAL) or "auto")
        self._keep = keep or int(environ.get(env.SNAPSHOT_KEEP) or _KEEP)
        self._keep_every = int(environ.get(env.SNAPSHOT_KEEP_EVERY) or 0) or None
        self._cost = Cost()
        self._cadence = Cadence(self._interval, started_at=time.monotonic(), cost=self._cost)
        self._heartbeat = Heartbeat(self._place, steps)
        self._requests = SnapshotRequests(None, answered=0)
        self._beginning = ScriptBeginning()
        self._saver: ScriptSaver | None = None
        self._survivor = _find_survivor()
        self._stop = StopFlag() if self._survivor is None else self._survivor.stop
        self._stop.install()
        self._stepped_at, self._step_s = time.monotonic(), 0.0
        self._heartbeat.beat(Phase.START)

    @property
    def saved_step(self) -> int | None:
        return None if self._saver is None else self._saver.saved_step

    def begin(self, objects: Mapping[str, object]) -> tuple[int, Path | None]:
        """Begin this generation's term. Returns the step, and the folder of the snapshot to continue from.

        With `objects`, that may be a state in memory instead, which has no folder. Raises SnapshotError and StaleTerm.
        """
        self._refuse_stale()
        place, is_survivor = self._place, self._survivor is not None
        self._heartbeat.beat(Phase.RESTORE)
        fingerprint = _completed_step().fingerprint_layout(objects) if is_survivor and objects else None
        self._beginning = found = script_beginning.begin(place, fingerprint, self._heartbeat.tell)
        self._requests = SnapshotRequests(desired_of(place) if place.rank == 0 else None, answered=found.requests)
        self._saver = ScriptSaver(place, found, self._heartbeat, keep=self._keep, keep_every=self._keep_every)
        return found.step, found.folder

    def _refuse_stale(self) -> None:
        if self._survivor is not _find_survivor():
            raise RuntimeError(
                "Supervised() was made for another generation: make it in the function that reenter calls"
            )

    def report(self, done: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Report a step. Only rank 0 reports metrics: reading them makes a rank wait for its accelerator."""
        now = time.monotonic()
        self._step_s, self._stepped_at = now - self._stepped_at, now
        if self._place.rank != 0:
            self._heartbeat.beat(Phase.STEP, done)
            return
        values = {name: _number(value) for name, value in metrics.items()} | {"step_s": self._step_s}
        self._heartbeat.beat(Phase.STEP, done, values)

    def decide(self, done: int) -> tuple[bool, bool]:
        """Whether to save, and whether to stop. Any rank may have got the stop signal; only rank 0 uses the clock.

        A rank that loses a peer here has completed the step.
        """
        self._refuse_stale()
        if self._survivor is not None:
            self._survivor.note_update(done)
        is_first = self._place.rank == 0
        due = (is_first or self._interval.steps is not None) and self._cadence.is_due(done, time.monotonic())
        due = due or (is_first and self._requests.is_due(time.monotonic()))
        too_late = is_first and not self._cadence.fits(self._place.notice_s)
        fingerprint = 0 if self._survivor is None else self._survivor.fingerprint
        (stop, due, too_late), is_equal = self._agree([self._stop.is_set, due, too_late], fingerprint)
        if self._survivor is not None:
            self._survivor.note_step(self._step_s, is_equal=is_equal)
        return (not too_late if stop else due), stop

    @contextmanager
    def slot(self, done: int, strategy: str = FILES) -> Iterator[Path]:
        if self._saver is None:
            raise RuntimeError("call latest() or restore() before slot(): a snapshot names the one that it continues")
        started = time.monotonic()
        self._heartbeat.beat(Phase.SNAPSHOT, done)
        try:
            with self._saver.slot(done, strategy, requests=self._requests.answer()) as folder:
                yield folder
            self._cost.stall_s = self._cost.duration_s = time.monotonic() - started
        finally:
            self._stepped_at = time.monotonic()  # the next step begins
            self._cadence.saved(self._stepped_at)
            self._heartbeat.beat(Phase.STEP, done)

    def save(self, objects: Mapping[str, object], done: int, *, is_last: bool) -> None:
        """Save the objects as a distributed checkpoint, unless this step has a snapshot.

        A failure is reported and training continues. The last snapshot is tried again. Raises SnapshotError if none of
        the tries succeeds.
        """
        self._try_to_save(objects, done)
        retries = Retries(self._stop)
        while is_last and self._is_missing(done, retries):
            retries.pause()
            self._try_to_save(objects, done)

    def _try_to_save(self, objects: Mapping[str, object], done: int) -> None:
        if self.saved_step != done:
            with suppress(OSError), self.slot(done, _DCP) as folder:
                _torch_side().save(objects, folder)

    def _is_missing(self, done: int, retries: Retries) -> bool:
        """Whether the last snapshot is not committed yet. Rank 0 decides. Raises SnapshotError after the last try."""
        is_first = self._place.rank == 0
        (missing, over), _ = self._agree([is_first and self.saved_step != done, is_first and retries.are_over])
        if missing and over:
            raise SnapshotError(f"training ended at step {done}, and its last snapshot could not be written")
        return missing

    def _agree(self, flags: list[bool], fingerprint: int = 0) -> tuple[list[bool], bool]:
        """For each flag, whether any rank has set it, and whether all ranks have the same fingerprint."""
        if self._place.world_size > 1 and "torch" in sys.modules:
            return cast(tuple[list[bool], bool], _torch_side().agree(flags, fingerprint))
        return flags, False

    def load(self, objects: Mapping[str, object]) -> None:
        """Read the state that this generation continues from, if any, and keep these objects for a handover."""
        self._refuse_stale()
        found = self._beginning
        if found.memory and found.name is not None:
            _torch_side().load_from_memory(objects, parse_snapshot_name(found.name), found.memory)
        elif found.folder is not None:
            if not (found.folder / ".metadata").exists():
                raise SnapshotError(
                    f"{found.folder} holds files that the script wrote: read them from the folder that latest() returns"
                )
            _torch_side().load(objects, found.folder, self._place.rank)
        if self._survivor is not None:
            fingerprint = _completed_step().fingerprint_layout(objects)
            self._survivor.keep(objects, found.step, lambda step: self._describe(step, fingerprint))
        self._stepped_at = time.monotonic()

    def _describe(self, step: int, fingerprint: int) -> Manifest:
        assert self._saver is not None
        manifest = self._saver.describe(step, _DCP, self._requests.answered, {})
        manifest.details[OBJECTS] = fingerprint
        return manifest

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._heartbeat.beat(Phase.EVALUATION)
        with nullcontext() if self._survivor is None else self._survivor.evaluating():
            yield
        self._heartbeat.beat(Phase.STEP)
        self._stepped_at = time.monotonic()


def _number(value: SupportsFloat) -> float:
    """torch warns if a tensor that requires a gradient becomes a number."""
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def _find_survivor() -> Survivor | None:
    """This generation of the process, if the script's function was given to `reenter`."""
    module = sys.modules.get("trainer.script.survivor")
    return None if module is None else module.Survivor.current


def _completed_step() -> ModuleType:
    from trainer.script import completed_step  # noqa: PLC0415  # it imports torch

    return completed_step


def _torch_side() -> ModuleType:
    from trainer.script import script_state  # noqa: PLC0415  # a script may do without torch

    return script_state
