"""Remove what ended jobs left behind, after the times in `[retention]`, in small pieces after each pass.

Only the supervisor starts attempts, and it runs in the same thread. So no attempt can start to need a file between the
check and the removal. Files are only moved to `.trash` in the run directory, which is quick; the TrashSweeper deletes
them. After a crash or an error, a later piece continues.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from orchestrator.domain.accounting.retention import DataKind, Retention, before, last_needed, tell_removal
from orchestrator.domain.errors import OrchestratorError, StoreUnavailable
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.specs.workdir import WORKSPACES
from orchestrator.jobfolder.folder import Folder
from orchestrator.ports.clock import Clock
from orchestrator.store.records import EndedJob
from orchestrator.store.retention_store import RetentionStore
from trainer.contract import layout

log = structlog.get_logger()

TRASH = ".trash"  # below the run directory
SHIPPED = (".agents", ".workdirs", WORKSPACES)
_ROUND = timedelta(days=1)  # the shortest time from the start of one check of all ended jobs to the start of the next
_EVERY = timedelta(seconds=60)  # the pause when there is nothing to do
_LOOKS = 200  # ended jobs that one piece looks at
_JOBS = 20  # jobs whose files one piece removes
_ROWS = 2000  # rows in one transaction
_ROW_KINDS = frozenset({DataKind.METRICS, DataKind.EVENTS})


class Housekeeper:
    """Cleans up one cluster. `root` is the run directory as the service sees it. Not thread-safe."""

    def __init__(self, cluster: str, root: Path, store: RetentionStore, clock: Clock, keep: Retention) -> None:
        self._cluster = cluster
        self._root = root
        self._store = store
        self._clock = clock
        self._keep = keep
        self._looked: dict[DataKind, tuple[datetime, str]] = {}  # the last job that is done, as (finished_at, id)
        self._began_at: datetime | None = None  # when this round began
        self._is_over = False  # whether it has checked all ended jobs
        self._due_at: datetime | None = None

    def tidy(self) -> None:
        """Do a small piece of the work, if it is time. Errors of the store or the disk are logged and retried."""
        now = self._clock.now()
        if self._due_at is not None and now < self._due_at <= now + _EVERY:
            return
        self._due_at = now + _EVERY
        try:
            if self._tidy(now):
                self._due_at = None  # there may be more to do
        except (OrchestratorError, OSError) as error:
            log.warning("housekeeping failed", cluster=self._cluster, reason=str(error))

    def _tidy(self, now: datetime) -> bool:
        """Do a piece of the work. Returns whether there may be more to do."""
        if self._began_at is None or (self._is_over and now - self._began_at >= _ROUND):
            self._began_at, self._is_over = now, False
            self._looked.clear()
        found = [self._tidy_jobs(kind, now) for kind in DataKind]
        self._is_over = self._is_over or not any(found)
        self._tidy_shipped(now)
        return any([*found, self._tidy_deliveries(now)])

    def _tidy_jobs(self, kind: DataKind, now: datetime) -> bool:
        days = self._keep.days(kind)
        limit = before(days, now)
        if days is None or limit is None:
            return False
        removed = 0
        page = self._store.ended(self._cluster, kind, before=limit, after=self._looked.get(kind), limit=_LOOKS)
        for job in page.jobs:
            event = Event(at=now, kind=EventKind.REMOVED.value, sentence=tell_removal(kind, days))
            try:
                if self._remove(kind, job, event):
                    if kind in _ROW_KINDS:
                        return True  # there may be more of it
                    removed += 1
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001
                # An edge: one job must not stop the removal of others. It is retried in the next round.
                log.warning("data of an ended job not removed", job=job.job_id, reason=str(error))
            self._looked[kind] = job.finished_at, job.job_id
            if removed == _JOBS:
                return True
        if page.last is not None:
            self._looked[kind] = page.last
        return page.last is not None

    def _remove(self, kind: DataKind, job: EndedJob, event: Event) -> bool:
        """Remove a part of a job's data. Returns whether there was any."""
        match kind:
            case DataKind.METRICS:
                return bool(self._store.forget_metrics(job.job_id, event, limit=_ROWS))
            case DataKind.EVENTS:
                return bool(self._store.forget_events(job.job_id, limit=_ROWS))
            case DataKind.LOGS:
                folder = Path(job.job_id)
                return self._discard(job, event, [layout.attempt_dir(folder, 1).parent, layout.cache_dir(folder)])
            case DataKind.FOLDER:
                is_removed = self._discard(job, event, [Path(job.job_id)])
                if is_removed:
                    self._store.forget_snapshots(job.job_id)
                return is_removed

    def _discard(self, job: EndedJob, event: Event, paths: list[Path]) -> bool:
        with Folder.of(self._root) as root:
            there = [path for path in paths if root.status(path) is not None]
            if not there or self._store.is_needed(job.job_id):
                return False
            self._store.add_event(job.job_id, event)
            for path in there:
                discard(root, path)
        return True

    def _tidy_shipped(self, now: datetime) -> None:
        limit = last_needed(self._keep.shipped_days, now, self._store.oldest_live())
        if limit is None:
            return
        with Folder.of(self._root) as root:
            old = [path for name in SHIPPED for path in _unused(root, Path(name), limit)]
            in_use = self._store.workdirs(since=limit) if old else ()
            for path in old[:_JOBS]:
                if not any(Path(used).is_relative_to(self._root / path) for used in in_use):
                    try:
                        discard(root, path)
                    except OSError as error:
                        log.warning("shipped files not removed", path=repr(path), reason=str(error))

    def _tidy_deliveries(self, now: datetime) -> bool:
        limit = before(self._keep.deliveries_days, now)
        return limit is not None and bool(self._store.forget_deliveries(before=limit, limit=_ROWS))


def discard(root: Folder, path: Path) -> None:
    """Move a path to the trash, whole or not at all. No error if it is gone. Raises OSError."""
    with root.make(Path(TRASH)) as trash:
        root.move_to(path, trash, uuid.uuid4().hex)


def _unused(root: Folder, path: Path, limit: datetime) -> Iterator[Path]:
    """Yield the entries that were last used before `limit`, oldest first."""
    found = [(status.st_mtime, name) for name in root.names(path) if (status := root.status(path / name)) is not None]
    yield from (path / name for mtime, name in sorted(found) if mtime < limit.timestamp())
