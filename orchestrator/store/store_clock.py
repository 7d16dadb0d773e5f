"""The database's clock, and which database a session uses."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session


def is_postgres(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def store_time(session: Session) -> datetime:
    """Return PostgreSQL's current time (not the transaction's start), or this machine's time for SQLite."""
    if is_postgres(session):
        moment = session.scalar(select(func.clock_timestamp()))
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC)
    return datetime.now(UTC)
