"""Write many rows with one statement, built once for each kind of database.

PostgreSQL gets all rows in one JSON document. One statement for each row would cost a round trip each, and VALUES or
arrays cost the driver more, because it renders each value in Python. SQLite runs in this process and gets one row at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic_core import to_json
from sqlalchemy import (
    CTE,
    Column,
    ColumnClause,
    Dialect,
    Table,
    bindparam,
    column,
    func,
    inspect,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler

from orchestrator.store.dialect import Insert
from orchestrator.store.tables import Base
from orchestrator.store.types import CLEANERS

Values = dict[str, object]
Bind = Callable[[object], object]
_ROWS = "rows"  # the parameter
_PLACE = "ordinality"  # of a row in the document; PostgreSQL's name


def insert_rows(session: Session, table: type[Base], rows: Sequence[Values]) -> None:
    """Insert rows. An id that the database generates is not in them."""
    send(session, build_insert(dialect_of(session), table), rows)


def send(session: Session, statement: Insert, rows: Sequence[Values]) -> None:
    """Execute a statement of `build_insert` for these rows."""
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        text, columns = _compile(statement, connection.dialect, tuple(rows[0]))
        bound = [[bind(row[name]) for row in rows] if bind else [row[name] for row in rows] for name, bind in columns]
        connection.exec_driver_sql(text, list(zip(*bound, strict=True)))
        return
    cleaners = _cleaners(statement)
    cleaned = [_clean(row, cleaners) for row in rows]
    # PostgreSQL parses these texts as the numbers NaN and infinity.
    connection.execute(statement, {_ROWS: to_json(cleaned, inf_nan_mode="strings").decode()})


@lru_cache
def build_insert(dialect: str, row: type[Base], *, first: CTE | None = None) -> Insert:
    """Build the statement. In PostgreSQL, `first` runs before any row is written."""
    table = table_of(row)
    if dialect != "postgresql":
        return sqlite.insert(table).inline()  # does not return ids
    names = [each.name for each in table.columns if each.autoincrement is not True]
    documents = bindparam(_ROWS, type_=postgresql.TEXT).cast(postgresql.JSON)
    of_table: ColumnClause[Any] = literal_column(f"NULL::{table.name}")
    rows = func.json_populate_recordset(of_table, documents).table_valued(
        *(column(each.name, each.type) for each in table.columns), with_ordinality=_PLACE
    )
    # Generated ids rise in the order of the rows.
    selected = select(*(rows.c[name] for name in names)).order_by(rows.c[_PLACE])
    return postgresql.insert(table).from_select(
        names, selected if first is None else selected.select_from(rows.join(first, true()))
    )


@lru_cache
def _compile(
    statement: Insert, dialect: Dialect, names: tuple[str, ...]
) -> tuple[str, Sequence[tuple[str, Bind | None]]]:
    """Return the statement's text, and its parameters with what converts their values.

    SQLAlchemy would collect and convert the parameters of each row by themselves, which costs more than the writing.
    """
    compiled = statement.compile(dialect=dialect, column_keys=names)
    assert isinstance(compiled, SQLCompiler)
    types = {each.name: each.type.dialect_impl(dialect) for each in _columns_of(statement)}
    return str(compiled), [(name, types[name].bind_processor(dialect)) for name in compiled.positiontup or ()]


@lru_cache
def _cleaners(statement: Insert) -> Mapping[str, Callable[[Any], object]]:
    """Return what converts a value of a column before it goes into the document."""
    return {each.name: CLEANERS[type(each.type)] for each in _columns_of(statement) if type(each.type) in CLEANERS}


def _clean(row: Values, cleaners: Mapping[str, Callable[[Any], object]]) -> Values:
    return row | {name: clean(row[name]) for name, clean in cleaners.items() if row.get(name) is not None}


def _columns_of(statement: Insert) -> list[Column[Any]]:
    assert isinstance(statement.table, Table)
    return list(statement.table.columns)


def dialect_of(session: Session) -> str:
    return session.get_bind().dialect.name


def table_of(row: type[Base]) -> Table:
    table = inspect(row).local_table
    assert isinstance(table, Table)
    return table
