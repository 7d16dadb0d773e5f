"""Temporary databases on a PostgreSQL server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import text

from orchestrator.store.engine import Database, parse_url


@contextmanager
def scratch_database(server: str, template: str = "template1") -> Iterator[str]:
    """Create a copy of the empty database `template` and yield its URL. Drop it at the end, even if it is in use."""
    name = f"scratch_{uuid.uuid4().hex}"
    _administer(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        yield parse_url(server).set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    finally:
        _administer(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def find_lease_holder(connection: psycopg.Connection) -> int | None:
    """Return the id of the process that holds the lease of the only cluster."""
    row = connection.execute("SELECT holder FROM leases WHERE expires_at > clock_timestamp()").fetchone()
    return None if row is None else int(row[0].split(":")[1])


def _administer(server: str, statement: str) -> None:
    database = Database(server)
    try:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(statement))
    finally:
        database.dispose()
