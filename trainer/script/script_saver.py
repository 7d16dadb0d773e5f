"""Snapshots of a user's own script: its files or a distributed checkpoint, committed like those of the trainer."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from trainer import snapshot
from trainer.contract.clock import render_time
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.fence import Term
from trainer.contract.manifest import FILES, FileEntry, Manifest, SnapshotName
from trainer.errors import SnapshotError, StaleTerm
from trainer.script import notes as script_notes
from trainer.script.script_beginning import ScriptBeginning
from trainer.snapshot.events import tell_committed
from trainer.snapshot.lineage import fence_of, folder_of
from trainer.snapshot.retention import Retention
from trainer.worker.full_disk import raise_injected_full_disk
from trainer.worker.heartbeat import Heartbeat


class ScriptSaver:
    """`beginning` is what this generation continues from."""

    def __init__(
        self, place: WorkerPlace, beginning: ScriptBeginning, heartbeat: Heartbeat, *, keep: int, keep_every: int | None
    ) -> None:
        folder, fence = folder_of(place), fence_of(place)
        self.saved_step: int | None = None
        self._place, self._folder, self._fence, self._heartbeat = place, folder, fence, heartbeat
        self._parent = beginning.name
        self._last_failure = ""
        verified = beginning.folder
        self._retention = Retention(folder, fence, heartbeat.tell, keep=keep, keep_every=keep_every, verified=verified)
        self._term = Term(place.attempt, place.generation)

    @contextmanager
    def slot(self, step: int, strategy: str, *, requests: int) -> Iterator[Path]:
        """A folder that all ranks write into; rank 0 commits it when all have left. Raises StaleTerm and OSError."""
        if self.saved_step == step:
            raise RuntimeError(f"step {step} already has a snapshot: check saved_step first")
        self._fence.check(self._term)
        path, started = self._folder / str(SnapshotName(step, self._term)), time.monotonic()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            if strategy == FILES:
                raise  # DCP fails in the same way later, on all ranks
        script_notes.reserve_note(path, self._place.rank)
        try:
            yield path
        except BaseException as error:
            script_notes.leave_failure(path, self._place.rank, error)
            self._give_up(path, step, error)
            raise
        try:
            self._close(path, step, strategy, requests, started)
        except (OSError, SnapshotError, StaleTerm) as error:
            self._give_up(path, step, error)
            if isinstance(error, StaleTerm):
                raise

    def _close(self, path: Path, step: int, strategy: str, requests: int, started: float) -> None:
        rank = self._place.rank
        try:
            raise_injected_full_disk(self._place, str(path))
            script_notes.leave_note(path, rank, [] if strategy == FILES else snapshot.files_of_rank(path, rank))
        except OSError as error:
            script_notes.leave_failure(path, rank, error)  # otherwise the others would wait for this rank
            if rank == 0:  # it removes the slot next: no other rank may write there
                script_notes.await_notes(path, range(1, self._place.world_size))
            raise
        if rank != 0:
            self.saved_step = step if script_notes.wait_until_closed(path) else self.saved_step
            return
        manifest = self.describe(step, strategy, requests, script_notes.gather(path, self._place.world_size))
        self._fence.check(self._term)
        snapshot.commit(path, manifest)
        self.saved_step = step
        tell_committed(path, manifest, time.monotonic() - started, self._heartbeat.tell)
        self._retention.delete_old()

    def describe(self, step: int, strategy: str, requests: int, files: dict[str, FileEntry]) -> Manifest:
        """The manifest of a state. One that is handed over has no files."""
        torch = sys.modules.get("torch")
        return Manifest(
            step=step,
            attempt=self._term.attempt,
            generation=self._term.generation,
            parent=self._parent,
            at=render_time(datetime.now(timezone.utc)),
            world_size=self._place.world_size,
            strategy=strategy,
            samples_seen=0,  # only the script knows
            files=files,
            versions={"python": platform.python_version(), **({} if torch is None else {"torch": torch.__version__})},
            details={"wishes": requests},
        )

    def _give_up(self, path: Path, step: int, error: BaseException) -> None:
        if self._place.rank != 0 or self.saved_step == step:  # a committed snapshot stays, whatever failed after it
            return
        with suppress(OSError):  # the next generation removes the rest
            snapshot.remove(path)
        if (failure := f"{step}: {error}") == self._last_failure:  # the last snapshot is tried again and again
            return
        self._last_failure = failure
        evidence: dict[str, object] = {"name": path.name, "step": step, "error": str(error)}
        self._heartbeat.tell(EventKind.SNAPSHOT_FAILED, f"snapshot of step {step} failed: {error}", evidence)
