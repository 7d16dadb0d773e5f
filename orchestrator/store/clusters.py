"""What the clusters hold, for readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select

from orchestrator.domain.admission import Claimant
from orchestrator.domain.job import JobState
from orchestrator.domain.node import NodeFailure
from orchestrator.store.engine import Database
from orchestrator.store.mapping import attempt_of, job_of, node_failure_of
from orchestrator.store.tables import AttemptRow, JobRow, NodeFailureRow

_LIVE = tuple(state.value for state in JobState if not state.terminal)


class SqlClusterReader:
    """Implements ports.ClusterReader."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claimants(self, cluster: str) -> Sequence[Claimant]:
        here = (JobRow.cluster == cluster) & JobRow.state.in_(_LIVE)
        newest = (
            select(AttemptRow.job_id, func.max(AttemptRow.number).label("number"))
            .join(JobRow, JobRow.id == AttemptRow.job_id)
            .where(here)
            .group_by(AttemptRow.job_id)
            .subquery()
        )
        query = (
            select(JobRow, AttemptRow)
            .outerjoin(newest, newest.c.job_id == JobRow.id)
            .outerjoin(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == newest.c.number))
            .where(here)
        )
        with self._database.read() as session:
            return [
                Claimant(job_of(job), None if attempt is None else attempt_of(attempt))
                for job, attempt in session.execute(query)
            ]

    def node_failures(self, *, since: datetime) -> Sequence[NodeFailure]:
        query = select(NodeFailureRow).where(NodeFailureRow.at >= since).order_by(NodeFailureRow.at)
        with self._database.read() as session:
            return [node_failure_of(row) for row in session.scalars(query)]
