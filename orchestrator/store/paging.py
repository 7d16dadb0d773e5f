"""Keyset pages. A cursor holds the sort key of the last row, so inserts neither repeat nor skip a row."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import BigInteger, BindParameter, ColumnElement, FromClause, Integer, Select, and_, bindparam, not_, or_
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.elements import KeyedColumnElement

from orchestrator.domain.errors import Refused
from orchestrator.store.tables import Base
from trainer.contract.clock import parse_time, render_time

Row = TypeVar("Row", bound=Base)
Found = TypeVar("Found")
Query = TypeVar("Query", bound=Select[Any])

_LIMIT = "page_limit"  # a parameter of the statements
_AFTER, _UNTIL = "after", "until"  # the beginnings of the names of others
_REFUSAL = "cursor does not belong to this list: pass `next_cursor` of the previous page unchanged, or no cursor"


@dataclass(frozen=True, slots=True)
class Key:
    """One column of a sort order. All columns together must be unique."""

    column: InstrumentedAttribute[Any] | KeyedColumnElement[Any]
    type: type[str] | type[int] | type[datetime]
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A sort order with a name. Cursors of another name are refused."""

    name: str
    keys: tuple[Key, ...]

    def page(
        self,
        session: Session,
        query: Select[Row],
        *,
        limit: int,
        cursor: str | None,
    ) -> tuple[Sequence[Row], str | None]:
        """Return the next `limit` rows (at least one) after `cursor`, and the next cursor, None at the end."""
        statement = self.select_page(query, continues=cursor is not None)
        return self.cut(session.scalars(statement, self.parameters(limit=limit, cursor=cursor)).all(), limit=limit)

    def select_page(self, query: Query, *, continues: bool) -> Query:
        """Select the rows of a page and one more, after a cursor if the page `continues`. See `parameters`."""
        if continues:
            query = query.where(self._after([_bind(key) for key in self.keys]))
        return query.order_by(*self.terms()).limit(bindparam(_LIMIT, type_=Integer))

    def terms(self, rows: FromClause | None = None) -> list[ColumnElement[Any]]:
        """Return the terms of ORDER BY. `rows` has the columns, if it is not the keys' own table."""
        columns = [key.column if rows is None else rows.c[key.column.key] for key in self.keys]
        return [
            column.desc() if key.descending else column.asc() for key, column in zip(self.keys, columns, strict=True)
        ]

    def parameters(self, *, limit: int, cursor: str | None) -> dict[str, object]:
        """Return the values of the statement's parameters. Raises Refused for a cursor of another list."""
        values = {} if cursor is None else dict(zip(self.keys, self._parse(cursor), strict=True))
        return {_bind(key).key: value for key, value in values.items()} | {_LIMIT: max(1, limit) + 1}

    def cut(
        self, rows: Sequence[Found], *, limit: int, until: object | None = None
    ) -> tuple[Sequence[Found], str | None]:
        """Return the rows of the page, and the next cursor, None at the end.

        `until` has the keys of the row at which the search for more rows ended, None if it ended at the last row.
        """
        shown = rows[: max(1, limit)]
        last = shown[-1] if len(rows) > len(shown) else until
        return shown, None if last is None else self._render(last)

    def select_bound(self, query: Query, *, continues: bool, rows: int) -> Query:
        """Select only the row that is `rows` rows after the cursor, the last one of that many. Takes `parameters`."""
        return self.select_page(query, continues=continues).limit(1).offset(rows - 1)

    def until(self) -> ColumnElement[bool]:
        """Restrict a query to rows up to one, itself included. See `bound`."""
        values = [_bind(key, _UNTIL) for key in self.keys]
        first = self.keys[0]
        # Implied by the rest. With it, the database can stop at a position in the index.
        bound = first.column >= values[0] if first.descending else first.column <= values[0]
        return and_(bound, not_(self._after(values)))

    def bound(self, row: object) -> dict[str, object]:
        """Return the values of the parameters of `until`."""
        return {_bind(key, _UNTIL).key: getattr(row, key.column.key) for key in self.keys}

    def _after(self, values: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
        alternatives = []
        for position, (key, value) in enumerate(zip(self.keys, values, strict=True)):
            same = [earlier.column == values[index] for index, earlier in enumerate(self.keys[:position])]
            alternatives.append(and_(*same, key.column < value if key.descending else key.column > value))
        # Implied by each alternative. With it, the database can start at a position in the index.
        first = self.keys[0]
        bound = first.column <= values[0] if first.descending else first.column >= values[0]
        return and_(bound, or_(*alternatives))

    def _render(self, row: object) -> str:
        values = [_to_json(getattr(row, key.column.key)) for key in self.keys]
        return base64.urlsafe_b64encode(json.dumps([self.name, *values]).encode()).decode()

    def _parse(self, cursor: str) -> list[object]:
        try:
            document = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
            if not isinstance(document, list) or document[0] != self.name:
                raise ValueError("cursor of another list")
            return [_from_json(key, value) for key, value in zip(self.keys, document[1:], strict=True)]
        except (binascii.Error, ValueError, IndexError, RecursionError) as error:
            raise Refused(_REFUSAL) from error


def _bind(key: Key, end: str = _AFTER) -> BindParameter[Any]:
    return bindparam(f"{end}_{key.column.key}", type_=key.column.type)


def _to_json(value: object) -> object:
    return render_time(value) if isinstance(value, datetime) else value


def _from_json(key: Key, value: object) -> object:
    if key.type is datetime and isinstance(value, str):
        return parse_time(value)
    bits = 63 if isinstance(key.column.type, BigInteger) else 31
    if key.type is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**bits:
        return value
    if key.type is str and isinstance(value, str):
        return value
    raise ValueError(f"{key.column.key} is {value!r}")
