"""The database: one object that opens connections, gives transactions, and speaks of trouble in our words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from orchestrator.domain.errors import ConfigurationError
from orchestrator.store import sqlite
from orchestrator.store.failures import translated

_POSTGRES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
# A server that vanished without a word must not hold a thread for the kernel's two hours.
_POSTGRES_ARGUMENTS = {
    "connect_timeout": "5",
    "application_name": "orchestrator",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def parse_url(text: str) -> URL:
    """The URL with the driver that we use. Raises ConfigurationError for any other database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "ORCHESTRATOR_DATABASE_URL is not a URL as sqlite:////path or postgresql://..."
        ) from error
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:":
            raise ConfigurationError(
                "ORCHESTRATOR_DATABASE_URL names no file: an SQLite database in memory is not served"
            )
        return url.set(drivername="sqlite+pysqlite")
    raise ConfigurationError(f"ORCHESTRATOR_DATABASE_URL: {url.drivername} is not served, only sqlite and postgresql")


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database, None for PostgreSQL."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:"))


class Database:
    """Connections to one database. Thread-safe; nothing connects before the first transaction.

    Every transaction raises StoreUnavailable when the database cannot be used.
    """

    def __init__(self, url: str, *, migrating: bool = False) -> None:
        """Raises ConfigurationError for a database that cannot be served from here.

        `migrating` is for the schema alone: SQLite rebuilds tables, during which foreign keys must not cascade.
        """
        self.url = parse_url(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.file = sqlite_file(self.url)
        if self.file is not None:
            sqlite.check_file(self.file)
        self.engine = _build_engine(self.url, migrating=migrating)
        if self.file is None:
            self._reading: Engine = self.engine.execution_options(
                isolation_level="REPEATABLE READ"
            )  # one view of all tables
            self._writing: Engine = self.engine
        else:
            self._reading = self.engine
            self._writing = self.engine.execution_options(**{sqlite.BEGIN: "BEGIN IMMEDIATE"})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that sees one state of the database."""
        with translated(self.name), Session(self._reading) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that is committed at the end of the block, or rolled back by an exception."""
        with translated(self.name), Session(self._writing) as session, session.begin():
            yield session

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _build_engine(url: URL, *, migrating: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            pool_size=8,
            max_overflow=40,
            pool_timeout=10,
            json_serializer=_render_json,
            connect_args={"timeout": 5},
        )
        sqlite.listen(engine, foreign_keys=not migrating)
        return engine
    try:
        return create_engine(
            url,
            pool_size=8,
            max_overflow=16,
            pool_timeout=10,
            pool_pre_ping=True,
            json_serializer=_render_json,
            connect_args={name: value for name, value in _POSTGRES_ARGUMENTS.items() if name not in url.query},
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs a driver: pip install 'elastic-orchestrator[service,postgres]'"
        ) from error


def _render_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
