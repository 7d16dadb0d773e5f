"""Marks in the records of nodes: each attempt marks a node once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from orchestrator.domain.node import NodeFailure
from orchestrator.store.clock import is_postgres
from orchestrator.store.mapping import node_failure_columns
from orchestrator.store.tables import NodeFailureRow


def write_marks(session: Session, marks: Sequence[NodeFailure]) -> None:
    """Add the marks; one that is there stays as it was."""
    if not marks:
        return
    insert = postgresql.insert(NodeFailureRow) if is_postgres(session) else sqlite.insert(NodeFailureRow)
    session.execute(insert.on_conflict_do_nothing(), [node_failure_columns(mark) for mark in marks])
