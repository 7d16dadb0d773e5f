"""Read the jobs, node records and waits of clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Select, func, literal, select, union_all

from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.store.engine import Database
from orchestrator.store.lookups import read_states
from orchestrator.store.node_records import read_reports
from orchestrator.store.overview import read_live_jobs
from orchestrator.store.records import ClusterAges, LiveJob
from orchestrator.store.tables import JobRow, SnapshotRow


class ClusterReader:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def live_jobs(self, clusters: Collection[str]) -> Mapping[str, Sequence[LiveJob]]:
        """Return each cluster's jobs that are not terminal, also suspended ones, each with its newest attempt."""
        found: dict[str, list[LiveJob]] = {name: [] for name in clusters}
        for each in read_live_jobs(self._database, clusters):
            found[each.job.spec.cluster].append(each)
        return found

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of these jobs. A job that does not exist is left out."""
        with self._database.read() as session:
            return read_states(session, job_ids)

    def node_failures(self, *, since: datetime) -> Sequence[NodeFailure]:
        """Return the failures in the node records of all clusters."""
        with self._database.ask() as connection:
            return read_reports(connection, since=since)

    def ages(self) -> Sequence[ClusterAges]:
        """Return the longest waits of each cluster that has any."""
        with self._database.read() as session:
            return [
                ClusterAges(cluster=name, queued_since=queued_since, snapshot_at=snapshot_at)
                for name, queued_since, snapshot_at in session.execute(_AGES)
            ]


def _select_ages() -> Select[str, datetime | None, datetime | None]:
    """Select clusters with the submission of the oldest queued job, and the oldest of the jobs' newest snapshots."""
    newest = (
        select(SnapshotRow.at)
        .where(SnapshotRow.job_id == JobRow.id, SnapshotRow.state == "committed")
        .order_by(SnapshotRow.step.desc())
        .limit(1)
        .scalar_subquery()
    )
    nothing = literal(None, JobRow.created_at.type)
    both = union_all(
        select(JobRow.cluster, JobRow.created_at.label("queued"), nothing.label("snapshot")).where(
            JobRow.state == JobState.QUEUED.value, JobRow.retries_done == 0
        ),
        select(JobRow.cluster, nothing, newest).where(JobRow.state == JobState.RUNNING.value),
    ).subquery()
    queued_since, snapshot_at = func.min(both.c.queued), func.min(both.c.snapshot)
    known = queued_since.is_not(None) | snapshot_at.is_not(None)
    return (
        select(both.c.cluster, queued_since, snapshot_at)
        .group_by(both.c.cluster)
        .having(known)
        .order_by(both.c.cluster)
    )


_AGES = _select_ages()  # built once, because building an expression costs more than running it
