"""Tell Alembic where the tables and the database are.

The service passes a connection (orchestrator.store.schema). On the command line
(`alembic revision --autogenerate -m ...`), the settings name the database.
"""

from __future__ import annotations

from typing import Literal

from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from alembic import context
from orchestrator.settings import load_settings
from orchestrator.store.engine import Database
from orchestrator.store.tables import Base
from orchestrator.store.types import CleanJson, CleanText, UtcDateTime


def render_type(kind: str, value: object, _: AutogenContext) -> str | Literal[False]:
    """Render our column types as SQLAlchemy's, so that migrations stay the same when ours change."""
    if kind != "type":
        return False
    if isinstance(value, CleanText):
        return "sa.Text()"
    if isinstance(value, CleanJson):
        return "sa.JSON()"
    if isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,  # SQLite cannot alter a table; Alembic rebuilds it
        render_item=render_type,
        compare_type=True,
        transaction_per_migration=True,  # a migration may commit, to create an index without blocking writers
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(load_settings().resolved_database_url, migrating=True) as database, database.write() as session:
        run(session.connection())
