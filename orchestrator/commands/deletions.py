"""Delete the records of ended jobs. The supervisor of their cluster removes their files later."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import Principal
from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.deletion import Deletion, build_deletion, require_deletable
from orchestrator.domain.job.dependents import awaiting, relying_on
from orchestrator.ports.clock import Clock
from orchestrator.ports.jobs import JobLookup, JobStore
from orchestrator.store.deletion_store import DeletionStore
from trainer.contract.location import join

log = structlog.get_logger()


class Deletions:
    """`wake` starts a pass of the supervisors soon. It must not block."""

    def __init__(
        self,
        store: DeletionStore,
        jobs: JobStore,
        reader: JobLookup,
        clusters: Mapping[str, Cluster],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._reader = reader
        self._clusters = clusters
        self._clock = clock
        self._wake = wake

    def delete(self, job_id: str, *, files: bool, by: Principal) -> Deletion:
        """Delete a job's record, and with `files` also its folder and snapshots. Raises NotFound, Conflict.

        Idempotent: for a deleted job it returns what the first call did, even if `files` differs.
        """
        while True:
            try:
                job = self._jobs.get(job_id)
            except NotFound:
                done = self._store.deletion(job_id)
                if done is None:
                    raise
                return done
            dependents = self._reader.dependents(job_id)
            cluster = self._clusters.get(job.spec.cluster)
            require_deletable(
                job,
                files=files,
                relied_on_by=relying_on(job_id, dependents),
                awaited_by=awaiting(job_id, dependents),
                shares_files=cluster is None or cluster.shares_files,
            )
            deletion = build_deletion(job, by=by.name, at=self._clock.now(), files=files)
            if self._store.delete(deletion, seen=job.desired.number):
                log.info("job deleted", job=job_id, project=deletion.project, by=by.name, files=files)
                self._wake()
                return deletion

    def folders(self, deletion: Deletion) -> list[str]:
        """Return the job's folder, if its cluster is still configured, and the folder of its snapshots."""
        cluster, elsewhere = self._clusters.get(deletion.cluster), deletion.snapshot_dir
        own = [] if cluster is None else [str(cluster.job_dir(deletion.job_id))]
        return own if elsewhere is None else [*own, join(elsewhere, deletion.job_id)]
