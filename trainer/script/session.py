"""A user's own script as a worker of a job: how it begins, what it reports, and what is due after a step.

`trainer.supervised` is the public interface. Ranks use files to communicate before they have a process group.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import SupportsFloat, cast

from trainer.contract import env, layout
from trainer.contract.config import parse_interval
from trainer.contract.env import parse_place
from trainer.contract.manifest import FILES
from trainer.contract.progress import Phase
from trainer.errors import SnapshotError, StaleTerm
from trainer.script import notes as script_notes
from trainer.script.script_saver import ScriptSaver
from trainer.snapshot import lineage
from trainer.snapshot.cadence import Cadence, Cost
from trainer.snapshot.events import tell_restored
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.retries import Retries
from trainer.worker.signals import StopFlag
from trainer.worker.snapshot_requests import SnapshotRequests, desired_of

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
        self._saver: ScriptSaver | None = None
        self._stop = StopFlag()
        self._stop.install()
        self._stepped_at = time.monotonic()
        self._heartbeat.beat(Phase.START)

    @property
    def saved_step(self) -> int | None:
        return None if self._saver is None else self._saver.saved_step

    def begin(self) -> tuple[int, Path | None]:
        """Begin this generation's term. Returns the step and the snapshot to continue from.

        Raises SnapshotError and StaleTerm.
        """
        place, fence, folder = self._place, lineage.fence_of(self._place), lineage.folder_of(self._place)
        path = layout.beginning_file(Path(str(place.job_dir)), place.attempt, place.generation)
        self._heartbeat.beat(Phase.RESTORE)
        if place.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lineage.refuse_lost(place, folder)
                restore = lineage.begin_term(place, folder, fence, self._heartbeat.tell).restore
            except (SnapshotError, StaleTerm) as error:
                script_notes.publish(path, {"error": str(error)})
                raise
            self._requests = SnapshotRequests(desired_of(place), answered=lineage.answered_requests(restore))
            if restore is not None:
                tell_restored(restore, place.world_size, self._heartbeat.tell)
            chosen = {} if restore is None else {"step": restore.manifest.step, "folder": str(restore.path)}
            script_notes.publish(path, {"step": 0, "folder": None, **chosen})
        found = script_notes.wait_for(lambda: script_notes.read(path), f"rank 0 to choose a snapshot: {path}")
        if "error" in found:
            raise SnapshotError(str(found["error"]))
        restored = None if found["folder"] is None else Path(str(found["folder"]))
        keep, keep_every = self._keep, self._keep_every
        self._saver = ScriptSaver(place, restored, self._heartbeat, keep=keep, keep_every=keep_every)
        return int(str(found["step"])), restored

    def report(self, done: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Report a step. Only rank 0 reports metrics: reading them makes a rank wait for its accelerator."""
        now = time.monotonic()
        step_s, self._stepped_at = now - self._stepped_at, now
        if self._place.rank != 0:
            self._heartbeat.beat(Phase.STEP, done)
            return
        values = {name: _number(value) for name, value in metrics.items()} | {"step_s": step_s}
        self._heartbeat.beat(Phase.STEP, done, values)

    def decide(self, done: int) -> tuple[bool, bool]:
        """Whether to save, and whether to stop. Any rank may have got the stop signal; only rank 0 uses the clock."""
        is_first = self._place.rank == 0
        due = (is_first or self._interval.steps is not None) and self._cadence.is_due(done, time.monotonic())
        due = due or (is_first and self._requests.is_due(time.monotonic()))
        too_late = is_first and not self._cadence.fits(self._place.notice_s)
        stop, due, too_late = self._agree([self._stop.is_set, due, too_late])
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
            self._cadence.saved(time.monotonic())
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
        missing, over = self._agree([is_first and self.saved_step != done, is_first and retries.are_over])
        if missing and over:
            raise SnapshotError(f"training ended at step {done}, and its last snapshot could not be written")
        return missing

    def _agree(self, flags: list[bool]) -> list[bool]:
        """For each flag, whether any rank has set it."""
        if self._place.world_size > 1 and "torch" in sys.modules:
            return cast(list[bool], _torch_side().agree(flags))
        return flags

    def load(self, objects: Mapping[str, object], folder: Path) -> None:
        if not (folder / ".metadata").exists():
            raise SnapshotError(
                f"{folder} holds files that the script wrote: read them from the folder that latest() returns"
            )
        _torch_side().load(objects, folder)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._heartbeat.beat(Phase.EVALUATION)
        yield
        self._heartbeat.beat(Phase.STEP)


def _number(value: SupportsFloat) -> float:
    """torch warns if a tensor that requires a gradient becomes a number."""
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def _torch_side() -> ModuleType:
    from trainer.script import script_state  # noqa: PLC0415  # a script may do without torch

    return script_state
