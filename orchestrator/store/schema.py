"""Create the database's tables, and refuse tables of another version. The service loads no Alembic for it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from orchestrator.domain.errors import SchemaMismatch
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.tables import Base

# A link to the top-level folder `alembic/`. In a wheel, this folder holds the migrations themselves.
MIGRATIONS = Path(__file__).with_name("migrations")
# Versions from before the first release. Their migrations were deleted.
_BEFORE_RELEASE = frozenset(f"{number:04}" for number in range(1, 11))
# Alembic's own table (alembic.runtime.migration).
_VERSION = Table(
    "alembic_version",
    MetaData(naming_convention={"pk": "%(table_name)s_pkc"}),
    Column("version_num", String(32), primary_key=True),
)


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
        _compare(_read_version(session.connection()), database.name)


def require_ours(url: str) -> None:
    """Raises SchemaMismatch unless the tables are the service's, of this version or an older one."""
    with Database(url, migrating=True) as database, database.read() as session:
        found = _read_version(session.connection())
        if found not in list_versions():
            _compare(found, database.name)


def create(url: str) -> None:
    """Create the tables in an empty database, as all migrations would."""
    with Database(url, migrating=True) as database, database.write() as session:
        connection = session.connection()
        Base.metadata.create_all(connection)
        _VERSION.create(connection)
        connection.execute(insert(_VERSION).values(version_num=list_versions()[-1]))


def require_upgradable(connection: Connection, database: str) -> None:
    """Raises SchemaMismatch for tables of a newer version, or from before the first release."""
    found = _read_version(connection)
    if found is not None and found not in list_versions():
        _compare(found, database)


def list_versions() -> list[str]:
    """Return the versions of the migrations, oldest first. The name of a migration's file begins with its version."""
    return sorted(file.stem.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def _read_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    version: str | None = connection.scalar(select(_VERSION.c.version_num))
    return version


def _compare(found: str | None, database: str) -> None:
    versions = list_versions()
    head = versions[-1]
    if found == head:
        return
    if found is None:
        raise SchemaMismatch(f"database {database} has no tables yet: run `orchestrator db upgrade`")
    if found in _BEFORE_RELEASE:
        raise SchemaMismatch(
            f"database {database} has version {found}, from before the first release, and cannot be upgraded: move it "
            "away, or name a new one in ORCHESTRATOR_DATABASE_URL, then run `orchestrator db upgrade`"
        )
    if found in versions:
        raise SchemaMismatch(
            f"database {database} has version {found}, older than this service ({head}): stop all services that use "
            "it, then run `orchestrator db upgrade`"
        )
    raise SchemaMismatch(
        f"database {database} has version {found}, newer than this service ({head}): upgrade the service"
    )
