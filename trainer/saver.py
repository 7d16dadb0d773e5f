"""One snapshot from begin to commit: all ranks write, each checksums its own files, rank 0 commits them or none.

A save that fails on any rank fails on all, is told as an event, and training goes on; only a stale term ends it.
"""

from __future__ import annotations

import platform
import time
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist

from trainer import snapshot
from trainer.agreement import on_every_rank, on_rank_zero
from trainer.contract.clock import render_time
from trainer.contract.config import TrainerConfig
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import FileEntry, Manifest, SnapshotName, restore_order
from trainer.errors import SnapshotError, StaleTerm
from trainer.heartbeat import Heartbeat
from trainer.lineage import Beginning, Fence, Restore
from trainer.state import RunState, write_state
from trainer.waits import Waits


class Saver:
    """Every method is collective: all ranks call it at the same step."""

    def __init__(
        self,
        *,
        directory: Path,
        beginning: Beginning,
        fence: Fence,
        config: TrainerConfig,
        strategy: str,
        data: dict[str, object],
        heartbeat: Heartbeat,
        waits: Waits,
    ) -> None:
        self._directory, self._fence, self._config, self._heartbeat = directory, fence, config, heartbeat
        self._waits = waits
        self._term, self._strategy, self._data = beginning.term, strategy, data
        restore = beginning.restore
        self._parent = None if restore is None else restore.path.name
        self.answered_wishes = _answered_wishes(restore)
        self.saved_step = restore.manifest.step if restore is not None and restore.is_own else None

    def save(self, state: RunState, *, wishes: int = 0) -> bool:
        """Commit a snapshot of `state` unless its step has one. False when it failed. Raises StaleTerm.

        `wishes` is, on rank 0, how many of the service's wishes for a snapshot have got one by now, this one included.
        """
        if self.saved_step == state.step:
            return True
        started = time.monotonic()
        path = self._directory / str(SnapshotName(state.step, self._term))
        try:
            manifest = self._write(state, path, wishes)
        except (OSError, StaleTerm) as error:
            self._give_up(path, state.step, error)
            if isinstance(error, StaleTerm):
                raise
            return False
        self.saved_step = state.step
        if dist.get_rank() == 0:
            self._tell_committed(path, manifest, time.monotonic() - started)
            self._delete_old()
        return True

    def _write(self, state: RunState, path: Path, wishes: int) -> Manifest:
        on_rank_zero(lambda: self._open(path), self._waits)
        write_state(state, path, self._waits)
        rank = dist.get_rank()
        parts = on_every_rank(lambda: snapshot.checksum_files(path, snapshot.files_of_rank(path, rank)), self._waits)
        files = {name: entry for part in parts for name, entry in part.items()}
        manifest = self._describe(state, files, wishes)
        on_rank_zero(lambda: self._commit(path, manifest), self._waits)
        return manifest

    def _open(self, path: Path) -> None:
        self._fence.check(self._term)
        path.mkdir()

    def _commit(self, path: Path, manifest: Manifest) -> None:
        self._fence.check(self._term)
        snapshot.commit(path, manifest)

    def _describe(self, state: RunState, files: dict[str, FileEntry], wishes: int) -> Manifest:
        return Manifest(
            step=state.step,
            attempt=self._term.attempt,
            generation=self._term.generation,
            parent=self._parent,
            at=render_time(datetime.now(timezone.utc)),
            world_size=dist.get_world_size(),
            strategy=self._strategy,
            samples_seen=state.samples_seen,
            files=files,
            versions={"torch": torch.__version__, "python": platform.python_version(), "trainer": _own_version()},
            details={"data": self._data, "config": asdict(self._config), "wishes": wishes},
        )

    def _give_up(self, path: Path, step: int, error: Exception) -> None:
        if dist.get_rank() != 0:
            return
        snapshot.remove(path)
        sentence = f"snapshot of step {step} failed, training goes on: {error}"
        if isinstance(error, StaleTerm):
            sentence = f"snapshot of step {step} was refused: {error}"
        self._heartbeat.tell(
            EventKind.SNAPSHOT_FAILED, sentence, {"name": path.name, "step": step, "error": str(error)}
        )

    def _tell_committed(self, path: Path, manifest: Manifest, seconds: float) -> None:
        evidence = {
            "name": path.name,
            "step": manifest.step,
            "size_bytes": manifest.size_bytes,
            "seconds": round(seconds, 3),
        }
        sentence = f"committed snapshot {path.name} ({manifest.size_bytes / 1e6:.1f} MB in {seconds:.2f} s)"
        self._heartbeat.tell(EventKind.SNAPSHOT_COMMITTED, sentence, evidence)

    def _delete_old(self) -> None:
        """Keep the newest `snapshot_keep` of the lineage. What an older term wrote beyond it is not touched."""
        try:
            order = restore_order(snapshot.list_committed(self._directory), self._fence.read())
        except OSError:
            return  # the snapshot stands; the next save deletes
        for name in order[self._config.snapshot_keep :]:
            snapshot.remove(self._directory / str(name))
            self._heartbeat.tell(EventKind.SNAPSHOT_DELETED, f"deleted snapshot {name}", {"name": str(name)})


def refuse_unwritable(directory: Path, waits: Waits) -> None:
    """Fail at once, on all ranks, when one of them cannot write snapshots at all. Raises SnapshotError."""
    rank = dist.get_rank()

    def probe() -> None:
        path = directory / f".probe-{rank}"
        directory.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.unlink()

    try:
        on_every_rank(probe, waits)
    except OSError as error:
        raise SnapshotError(f"snapshots cannot be written to {directory}: {error.strerror}") from error


def _answered_wishes(restore: Restore | None) -> int:
    """How many wishes for a snapshot had got theirs when the restored one was written."""
    wishes = 0 if restore is None or not restore.is_own else restore.manifest.details.get("wishes")
    return wishes if isinstance(wishes, int) else 0


def _own_version() -> str:
    try:
        return version("elastic-orchestrator")
    except PackageNotFoundError:
        return "unknown"  # run from a source tree
