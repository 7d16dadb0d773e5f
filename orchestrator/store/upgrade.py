"""Upgrade the database's tables by Alembic's migrations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from alembic.config import Config
from sqlalchemy import Connection, text

from alembic import command
from orchestrator.store import schema
from orchestrator.store.engine import Database
from orchestrator.store.failures import translated

_UPGRADE_LOCK = 0x6F726368  # key of pg_try_advisory_lock, "orch": two services may start at the same time
_RETRY_S = 0.2


def upgrade(url: str, *, version: str = "head") -> None:
    """Upgrade the tables to a version. Idempotent; concurrent calls take turns.

    Raises SchemaMismatch for a database that is newer than this service, or from before the first release. There are no
    downgrades; restore a backup instead.
    """
    with Database(url, migrating=True) as database, _alone(database) as connection:
        schema.require_upgradable(connection, database.name)
        if database.file is None:
            connection.commit()  # Alembic begins a transaction for each migration
        config = build_config()
        config.attributes["connection"] = connection
        command.upgrade(config, version)


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """Connect while no other upgrade runs. SQLite's is in one transaction, PostgreSQL's in one for each migration."""
    if database.file is not None:
        with database.write() as session:
            yield session.connection()
        return
    with translated(database.name), database.engine.connect() as connection:
        # This polls, because a statement that waits for the lock would in turn block CREATE INDEX CONCURRENTLY. The
        # lock ends with the connection.
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _UPGRADE_LOCK}):
            connection.rollback()
            time.sleep(_RETRY_S)
        yield connection


def build_config() -> Config:
    """Build Alembic's configuration without a file, so that Alembic prints nothing."""
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
