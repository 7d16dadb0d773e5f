"""Node records: the failures that attempts report of a node, and when somebody cleared its record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select
from sqlalchemy.orm import Session

from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.store.dialect import insert_into
from orchestrator.store.engine import Database
from orchestrator.store.many_rows import table_of
from orchestrator.store.mapping import node_failure_columns, node_failure_of
from orchestrator.store.tables import AttemptRow, NodeClearingRow, NodeFailureRow


class NodeStore:
    """Clears node records. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def clear(self, cluster: str, node: str, *, at: datetime, by: str) -> None:
        """Ignore the node's failures until `at`. Idempotent."""
        changed = {"cleared_at": at, "cleared_by": by}
        with self._database.write() as session:
            clearing = insert_into(session, NodeClearingRow).values(cluster=cluster, node=node, **changed)
            session.execute(clearing.on_conflict_do_update(index_elements=["cluster", "node"], set_=changed))


def read_reports(connection: Connection, *, since: datetime, cluster: str | None = None) -> list[NodeFailure]:
    """Return the failures of a cluster, or of all, oldest first."""
    query, of = (_REPORTS, {}) if cluster is None else (_OF_CLUSTER, {"cluster": cluster})
    rows = connection.execute(query, {"since": since, **of})
    return [node_failure_of(row) for row in rows]


def write_marks(session: Session, marks: Sequence[NodeFailure]) -> None:
    """Insert the failures. Existing ones stay unchanged."""
    if marks:
        insert = insert_into(session, NodeFailureRow).on_conflict_do_nothing()
        session.execute(insert, [node_failure_columns(mark) for mark in marks])


def _select_reports() -> Select[Any]:
    same_node = (NodeClearingRow.cluster == NodeFailureRow.cluster) & (NodeClearingRow.node == NodeFailureRow.node)
    its_attempt = (AttemptRow.job_id == NodeFailureRow.job_id) & (AttemptRow.number == NodeFailureRow.attempt)
    columns = NodeClearingRow.cleared_at, AttemptRow.created_at.label("began_at")
    query = select(*table_of(NodeFailureRow).columns, *columns)
    query = query.outerjoin(NodeClearingRow, same_node).outerjoin(AttemptRow, its_attempt)
    return query.where(NodeFailureRow.at >= bindparam("since")).order_by(NodeFailureRow.at)


# Built once, because building an expression costs more than running it. Each pass runs it.
_REPORTS = _select_reports()
_OF_CLUSTER = _REPORTS.where(NodeFailureRow.cluster == bindparam("cluster"))
