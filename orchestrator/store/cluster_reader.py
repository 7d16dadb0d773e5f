"""Read the jobs, node records and waits of clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Select, func, select

from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.queueing.admission import Claimant
from orchestrator.store.engine import Database
from orchestrator.store.lookups import read_states
from orchestrator.store.node_records import read_reports
from orchestrator.store.overview import read_claimants
from orchestrator.store.records import ClusterAges
from orchestrator.store.tables import JobRow, SnapshotRow


class ClusterReader:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claimants(self, cluster: str) -> Sequence[Claimant]:
        """Return the cluster's jobs that are not terminal, also suspended ones, each with its newest attempt."""
        return read_claimants(self._database, cluster)

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of these jobs. A job that does not exist is left out."""
        with self._database.read() as session:
            return read_states(session, job_ids)

    def node_failures(self, *, since: datetime) -> Sequence[NodeFailure]:
        """Return the failures in the node records of all clusters."""
        with self._database.read() as session:
            return read_reports(session, since=since)

    def ages(self) -> Sequence[ClusterAges]:
        """Return the longest waits of each cluster that has any."""
        with self._database.read() as session:
            queued = dict(session.execute(_QUEUED_SINCE).all())
            snapshots = {name: at for name, at in session.execute(_SNAPSHOT_AT) if at is not None}
        return [
            ClusterAges(cluster=name, queued_since=queued.get(name), snapshot_at=snapshots.get(name))
            for name in sorted(queued.keys() | snapshots.keys())
        ]


def _select_snapshot_at() -> Select[str, datetime | None]:
    newest = (
        select(SnapshotRow.at)
        .where(SnapshotRow.job_id == JobRow.id, SnapshotRow.state == "committed")
        .order_by(SnapshotRow.step.desc())
        .limit(1)
        .scalar_subquery()
    )
    running = select(JobRow.cluster, newest.label("at")).where(JobRow.state == JobState.RUNNING.value).subquery()
    return select(running.c.cluster, func.min(running.c.at)).group_by(running.c.cluster)


# Built once, because building an expression costs more than running it.
_QUEUED_SINCE = (
    select(JobRow.cluster, func.min(JobRow.created_at))
    .where(JobRow.state == JobState.QUEUED.value, JobRow.retries_done == 0)
    .group_by(JobRow.cluster)
)
_SNAPSHOT_AT = _select_snapshot_at()
