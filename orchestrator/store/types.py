"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from orchestrator.store.sanitize import clean_json, clean_text

# SQLite generates ids only in a column of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time. SQLite has no time zones and stores it as UTC, in text that sorts by time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _to_utc(value)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _to_utc(value)

    # For SQLite, these two replace the two above, which with those of SQLAlchemy take three times as long.

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], object] | None:
        return _render_utc if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        return _parse_utc if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"time {value} has no time zone")
    return value if value.tzinfo is UTC else value.astimezone(UTC)


@lru_cache(maxsize=1024)
def _render_utc(value: datetime | None) -> str | None:
    return None if value is None else _to_utc(value).isoformat(" ", "microseconds").removesuffix("+00:00")


def _parse_utc(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


class CleanText(TypeDecorator[str]):
    """Text from any source, without the characters that a database cannot store."""

    impl = Text()
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:
        return _clean


def _clean(value: str | None) -> str | None:
    return None if value is None else clean_text(value)


class CleanJson(TypeDecorator[object]):
    """JSON from any source. The engine cleans it with `render_json`. Python's None is SQL's NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True


# How each type cleans a value that is not None, for statements that get their rows as one document.
CLEANERS: Mapping[type[TypeEngine[Any]], Callable[[Any], object]] = {
    UtcDateTime: _to_utc,
    CleanText: clean_text,
    CleanJson: clean_json,
}
