"""Create and drop indexes in migrations, while services may write."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from alembic import op


def create_index(name: str, table: str, columns: Sequence[str], *, where: str | None = None) -> None:
    """Create an index of a table that may have millions of rows. `where` makes it partial.

    On PostgreSQL this blocks no writer. It cannot run in a transaction, so it commits what the migration did before:
    such a migration should do nothing else. An interrupted upgrade leaves an invalid index, which the next replaces.
    """
    condition = None if where is None else text(where)
    context = op.get_context()
    if context.dialect.name != "postgresql":
        op.create_index(name, table, columns, sqlite_where=condition)
        return
    with context.autocommit_block():
        op.drop_index(name, if_exists=True, postgresql_concurrently=True)
        op.create_index(name, table, columns, postgresql_where=condition, postgresql_concurrently=True)


def drop_index(name: str, table: str) -> None:
    """Drop an index, as `create_index` creates one."""
    context = op.get_context()
    if context.dialect.name != "postgresql":
        op.drop_index(name, table)
        return
    with context.autocommit_block():
        op.drop_index(name, if_exists=True, postgresql_concurrently=True)
