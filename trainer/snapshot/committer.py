"""Rank 0's part of a snapshot: directory, manifest, and events. Nothing here is collective."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone

import torch.distributed as dist

from trainer import snapshot
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import CONTIGUOUS, FileEntry, Manifest, SnapshotName
from trainer.errors import StaleTerm
from trainer.snapshot import Location
from trainer.snapshot.events import tell_committed
from trainer.snapshot.lineage import Beginning, fence_of, snapshots_of
from trainer.snapshot.provenance import Provenance
from trainer.snapshot.run_state import RunState
from trainer.snapshot.writing import Part, Plan, write_metadata
from trainer.worker.run import Run


@dataclass(frozen=True, kw_only=True)
class PendingSnapshot:
    """A snapshot in progress. `requests` counts the service's requests that it and earlier snapshots answer."""

    path: Location
    step: int
    samples_seen: int
    requests: int
    started: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


class Committer:
    def __init__(
        self, run: Run, beginning: Beginning, provenance: Provenance, *, strategy: str, data: dict[str, object]
    ) -> None:
        self._directory, self._term, self._fence = snapshots_of(run.place), beginning.term, fence_of(run.place)
        self._parent = None if beginning.restore is None else beginning.restore.path.name
        self._config, self._strategy, self._data = run.config, strategy, data
        self._tell, self._provenance = run.heartbeat.tell, provenance
        self._last_failure = ""

    def plan(self, state: RunState, requests: int) -> PendingSnapshot:
        path = self._directory / str(SnapshotName(state.step, self._term))
        return PendingSnapshot(path=path, step=state.step, samples_seen=state.samples_seen, requests=requests)

    def open(self, pending: PendingSnapshot) -> None:
        """Make the directory. Raises StaleTerm and OSError, FileExistsError if another process writes this snapshot."""
        self._fence.check(self._term)
        snapshot.claim(pending.path)

    def commit(self, pending: PendingSnapshot, plan: Plan, parts: list[Part]) -> None:
        """Commit a snapshot whose parts are all on disk. It counts once this returns. Raises StaleTerm and OSError."""
        files = write_metadata(plan, parts, pending.path)
        manifest = self.describe(pending.step, pending.samples_seen, pending.requests, files)
        manifest.details["provenance"] = self._provenance.document()
        self._fence.check(self._term)
        snapshot.commit(pending.path, manifest)
        tell_committed(pending.path, manifest, pending.age_s, self._tell)

    def describe(self, step: int, samples_seen: int, requests: int, files: dict[str, FileEntry]) -> Manifest:
        """The manifest of a state. Its provenance is added when the state goes to disk."""
        return Manifest(
            step=step,
            attempt=self._term.attempt,
            generation=self._term.generation,
            parent=self._parent,
            at=render_time(datetime.now(timezone.utc)),
            world_size=dist.get_world_size(),
            strategy=self._strategy,
            samples_seen=samples_seen,
            files=files,
            versions=self._provenance.versions,
            details={
                **CONTIGUOUS,
                "data": self._data,
                "config": asdict(self._config),
                "wishes": requests,
                "job": self._provenance.job_id,
            },
        )

    def give_up(self, pending: PendingSnapshot, error: Exception, *, is_opened: bool = True) -> None:
        """Remove what this process wrote, and report why."""
        if is_opened:
            with suppress(OSError):  # the store may be unavailable; the next generation removes the rest
                snapshot.remove(pending.path)
        why = f"another process writes {pending.path}" if isinstance(error, FileExistsError) else str(error)
        what_next = "it is tried again" if pending.step == self._config.steps else "training continues"
        sentence = f"snapshot of step {pending.step} failed, {what_next}: {why}"
        if isinstance(error, StaleTerm):
            sentence = f"snapshot of step {pending.step} was refused: {error}"
        if sentence == self._last_failure:  # of the last step, which is tried again and again
            return
        self._last_failure = sentence
        evidence: dict[str, object] = {"name": pending.path.name, "step": pending.step, "error": str(error)}
        self._tell(EventKind.SNAPSHOT_FAILED, sentence, evidence)
