"""Upgrade the database's tables by Alembic's migrations."""

from __future__ import annotations

from alembic.config import Config
from sqlalchemy import text

from alembic import command
from orchestrator.store import schema
from orchestrator.store.dialect import is_postgres
from orchestrator.store.engine import Database

_UPGRADE_LOCK = 0x6F726368  # key of pg_advisory_xact_lock, "orch": two services may start at the same time


def upgrade(url: str) -> None:
    """Upgrade the tables to this version. Idempotent; concurrent calls take turns.

    Raises SchemaMismatch for a database that is newer than this service, or from before the first release. There are no
    downgrades; restore a backup instead.
    """
    with Database(url, migrating=True) as database, database.write() as session:
        if is_postgres(session):
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        schema.require_upgradable(session, database.name)
        config = build_config()
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "head")


def build_config() -> Config:
    """Build Alembic's configuration without a file, so that Alembic prints nothing."""
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
