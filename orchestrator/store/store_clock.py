"""The store's own clock, and which database it is of."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session


def is_postgres(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def store_time(session: Session) -> datetime:
    """PostgreSQL's clock at this moment (not of the transaction's begin); SQLite has the clock of this one machine."""
    if is_postgres(session):
        moment = session.scalar(select(func.clock_timestamp()))
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC)
    return datetime.now(UTC)
