"""Rank 0's part of a snapshot: its directory, its manifest, and what its owner is told. Nothing here is collective."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone

import torch.distributed as dist

from trainer import snapshot
from trainer.contract.clock import render_time
from trainer.contract.config import TrainerConfig
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import CONTIGUOUS, Manifest, SnapshotName
from trainer.errors import StaleTerm
from trainer.snapshot import Place
from trainer.snapshot.events import tell_committed
from trainer.snapshot.lineage import Beginning, Fence
from trainer.snapshot.provenance import Provenance
from trainer.snapshot.run_state import RunState
from trainer.snapshot.writing import Part, Plan, write_metadata
from trainer.worker.heartbeat import Heartbeat


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A snapshot that is being made. `requests` counts those of the service that have got one by now."""

    path: Place
    step: int
    samples_seen: int
    requests: int
    started: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


class Committer:
    def __init__(
        self,
        *,
        directory: Place,
        beginning: Beginning,
        fence: Fence,
        config: TrainerConfig,
        strategy: str,
        data: dict[str, object],
        heartbeat: Heartbeat,
        provenance: Provenance,
    ) -> None:
        self._directory, self._term, self._fence = directory, beginning.term, fence
        self._parent = None if beginning.restore is None else beginning.restore.path.name
        self._config, self._strategy, self._data = config, strategy, data
        self._heartbeat, self._provenance = heartbeat, provenance

    def draft(self, state: RunState, requests: int) -> Draft:
        path = self._directory / str(SnapshotName(state.step, self._term))
        return Draft(path=path, step=state.step, samples_seen=state.samples_seen, requests=requests)

    def open(self, draft: Draft) -> None:
        """Make the directory. Raises StaleTerm, and OSError: FileExistsError when another writes this snapshot."""
        self._fence.check(self._term)
        snapshot.claim(draft.path)

    def commit(self, draft: Draft, plan: Plan, parts: list[Part]) -> None:
        """When all parts are on disk; until the end nothing of it counts. Raises StaleTerm and OSError."""
        files = write_metadata(plan, parts, draft.path)
        manifest = Manifest(
            step=draft.step,
            attempt=self._term.attempt,
            generation=self._term.generation,
            parent=self._parent,
            at=render_time(datetime.now(timezone.utc)),
            world_size=dist.get_world_size(),
            strategy=self._strategy,
            samples_seen=draft.samples_seen,
            files=files,
            versions=self._provenance.versions,
            details={
                **CONTIGUOUS,
                "data": self._data,
                "config": asdict(self._config),
                "wishes": draft.requests,
                "job": self._provenance.job_id,
                "provenance": self._provenance.document(),
            },
        )
        self._fence.check(self._term)
        snapshot.commit(draft.path, manifest)
        tell_committed(draft.path, manifest, draft.age_s, self._heartbeat.tell)

    def give_up(self, draft: Draft, error: Exception, *, is_opened: bool = True) -> None:
        """Remove what was written, unless it is somebody else's, and tell why."""
        if is_opened:
            with suppress(OSError):  # of a store that is away; the next generation sweeps what is left
                snapshot.remove(draft.path)
        sentence = f"snapshot of step {draft.step} failed, training goes on: {error}"
        if isinstance(error, StaleTerm):
            sentence = f"snapshot of step {draft.step} was refused: {error}"
        elif isinstance(error, FileExistsError):
            sentence = f"snapshot of step {draft.step} failed, training goes on: another process writes {draft.path}"
        evidence: dict[str, object] = {"name": draft.path.name, "step": draft.step, "error": str(error)}
        self._heartbeat.tell(EventKind.SNAPSHOT_FAILED, sentence, evidence)
