"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, Text
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

from orchestrator.store.sanitize import clean_text

# SQLite generates ids only in a column of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")


class _UtcText(sqlite.DATETIME):
    """Times in SQLite, in the format of SQLAlchemy, which takes three times as long."""

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], str | None]:
        return _render_time

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], datetime | None]:
        return _parse_time


def _render_time(value: datetime | None) -> str | None:
    return None if value is None else value.replace(tzinfo=None).isoformat(" ", "microseconds")


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text + "+00:00")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time. SQLite has no time zones and stores it as UTC, in text that sorts by time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if dialect.name == "sqlite":
            return _UtcText()  # type: ignore[no-untyped-call]  # SQLAlchemy's constructor has no types
        return dialect.type_descriptor(self.impl_instance)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time {value} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


class CleanText(TypeDecorator[str]):
    """Text from any source, without the characters that a database cannot store."""

    impl = Text()
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean_text(value)


class CleanJson(TypeDecorator[object]):
    """JSON from any source. The engine cleans it with `render_json`. Python's None is SQL's NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True
