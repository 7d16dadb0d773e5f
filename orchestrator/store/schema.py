"""Upgrade the database's tables, and refuse tables of another version."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.orm import Session

from alembic import command
from orchestrator.domain.errors import SchemaMismatch
from orchestrator.store.dialect import is_postgres
from orchestrator.store.engine import Database, parse_url, sqlite_file

# A link to the top-level folder `alembic/`. In a wheel, this folder holds the migrations themselves.
MIGRATIONS = Path(__file__).with_name("migrations")
_UPGRADE_LOCK = 0x6F726368  # key of pg_advisory_xact_lock, "orch": two services may start at the same time
# Versions from before the first release. Their migrations were deleted.
_BEFORE_RELEASE = frozenset(f"{number:04}" for number in range(1, 11))


def is_empty(url: str) -> bool:
    """Whether the database has no table yet, or no file. Creates nothing. Raises StoreUnavailable."""
    file = sqlite_file(parse_url(url))
    if file is not None and not file.exists():
        return True
    with Database(url, migrating=True) as database, database.read() as session:
        return not inspect(session.connection()).get_table_names()


def check(url: str) -> None:
    """Raises SchemaMismatch unless the tables have this version. The message says which side to upgrade."""
    file = sqlite_file(parse_url(url))
    if file is not None and not file.exists():
        raise SchemaMismatch(f"database {file} does not exist yet: run `orchestrator db upgrade`")
    with Database(url, migrating=True) as database, database.read() as session:
        _compare(_read_revision(session), database.name)


def require_ours(url: str) -> None:
    """Raises SchemaMismatch unless the tables are the service's, of this version or an older one."""
    with Database(url, migrating=True) as database, database.read() as session:
        found = _read_revision(session)
        if found not in _known():
            _compare(found, database.name)


def upgrade(url: str) -> None:
    """Upgrade the tables to this version. Idempotent; concurrent calls take turns.

    Raises SchemaMismatch for a database that is newer than this service, or from before the first release. There are no
    downgrades; restore a backup instead.
    """
    with Database(url, migrating=True) as database, database.write() as session:
        if is_postgres(session):
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        found = _read_revision(session)
        if found is not None and found not in _known():
            _compare(found, database.name)
        config = build_config()
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "head")


def build_config() -> Config:
    """Build Alembic's configuration without a file, so that Alembic prints nothing."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _read_revision(session: Session) -> str | None:
    return MigrationContext.configure(session.connection()).get_current_revision()


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(build_config()).walk_revisions()}


def _compare(found: str | None, database: str) -> None:
    head = ScriptDirectory.from_config(build_config()).get_current_head()
    if found == head:
        return
    if found is None:
        raise SchemaMismatch(f"database {database} has no tables yet: run `orchestrator db upgrade`")
    if found in _BEFORE_RELEASE:
        raise SchemaMismatch(
            f"database {database} has version {found}, from before the first release, and cannot be upgraded: move it "
            "away, or name a new one in ORCHESTRATOR_DATABASE_URL, then run `orchestrator db upgrade`"
        )
    if found in _known():
        raise SchemaMismatch(
            f"database {database} has version {found}, older than this service ({head}): stop all services that use "
            "it, then run `orchestrator db upgrade`"
        )
    raise SchemaMismatch(
        f"database {database} has version {found}, newer than this service ({head}): upgrade the service"
    )
