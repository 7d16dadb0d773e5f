"""Remove the files of deleted jobs, a slice in each pass. The next pass continues where this one stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from orchestrator.jobfolder.removal import JobFolders
from orchestrator.store.deletion_store import DeletionStore

log = structlog.get_logger()

SLICE_S = 1.0  # the time in each pass, so that running jobs do not wait
_AGAIN_S = 60.0  # the pause after a failure


class Sweeper:
    """Removes files of one cluster, under its lease. `require_lease` raises LeaseLost once the lease has expired."""

    def __init__(
        self,
        cluster: str,
        store: DeletionStore,
        folders: JobFolders,
        *,
        require_lease: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._folders = folders
        self._require_lease = require_lease
        self._monotonic = monotonic
        self._not_before: dict[str, float] = {}

    def sweep(self) -> None:
        """Raises StoreUnavailable, LeaseLost. If a folder cannot be removed, tries it again after a minute."""
        deadline = self._monotonic() + SLICE_S
        for deletion in self._store.due(self._cluster):
            if self._monotonic() >= deadline:
                return
            if self._monotonic() < self._not_before.get(deletion.job_id, 0.0):
                continue
            self._require_lease()
            try:
                done = self._folders.remove(
                    deletion.job_id, deletion.snapshot_dir, lambda: self._monotonic() < deadline
                )
            except OSError as error:
                self._not_before[deletion.job_id] = self._monotonic() + _AGAIN_S
                log.warning("files of a deleted job are still there", job=deletion.job_id, reason=str(error))
                continue
            if done:
                self._not_before.pop(deletion.job_id, None)
                self._store.files_deleted(deletion.job_id)
