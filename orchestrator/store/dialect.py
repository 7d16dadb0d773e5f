"""Where SQLite and PostgreSQL differ: their clocks and their INSERT ... ON CONFLICT."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from orchestrator.store.tables import Base
from orchestrator.store.types import UtcDateTime

Insert = sqlite.Insert | postgresql.Insert


def is_postgres(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def insert_into(session: Session, table: type[Base]) -> Insert:
    """Begin an INSERT that can have an ON CONFLICT clause."""
    return postgresql.insert(table) if is_postgres(session) else sqlite.insert(table)


def store_time(session: Session) -> datetime:
    """Return PostgreSQL's current time (not the transaction's start), or this machine's time for SQLite."""
    if is_postgres(session):
        moment: datetime | None = session.scalar(select(select_time(session)))
        assert moment is not None
        return moment
    return datetime.now(UTC)


def select_time(session: Session) -> ColumnElement[datetime]:
    """Build the expression for `store_time`."""
    if is_postgres(session):
        return func.clock_timestamp(type_=UtcDateTime())
    return literal(datetime.now(UTC), UtcDateTime())
