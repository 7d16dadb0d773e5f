"""Translate a driver's error into a sentence for the operator: what happened and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from orchestrator.domain.errors import StoreUnavailable

# The first match in the driver's text wins. SQLite's texts are listed in sqlite.org/rescode.html.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        "database is locked",
        "another process holds a lock on it; find out which (`fuser` on the file) and let it finish",
    ),
    ("readonly database", "the file or its folder is read-only; make both writable for the service's user"),
    ("database or disk is full", "the disk is full; free some space on it"),
    ("No space left on device", "the disk of the database server is full; free some space on it"),
    ("unable to open database file", "the file cannot be opened; check that its folder exists and is writable"),
    ("disk I/O error", "the disk reports an error; check the disk and its file system"),
    ("database disk image is malformed", "the file is damaged; restore it from a backup"),
    ("file is not a database", "the file is no SQLite database; check ORCHESTRATOR_DATABASE_URL"),
    ("no such table", "its tables are missing; run `orchestrator db upgrade`"),
    ("no such column", "its tables have another version; run `orchestrator db upgrade`"),
    ("UndefinedTable", "its tables are missing; run `orchestrator db upgrade`"),
    ("UndefinedColumn", "its tables have another version; run `orchestrator db upgrade`"),
    ("password authentication failed", "it refuses the password; check ORCHESTRATOR_DATABASE_URL"),
    ("LockNotAvailable", "another transaction held a lock for too long; try again"),
    ("DeadlockDetected", "two transactions blocked each other; try again"),
    ("too many clients", "all of its connections are in use; raise max_connections or run fewer services"),
    ("read-only transaction", "it accepts no writes (a standby?); point ORCHESTRATOR_DATABASE_URL to the primary"),
)
_SERVER_GONE = "it does not answer; check that the server runs and that ORCHESTRATOR_DATABASE_URL is right"
_POOL_EMPTY = "all connections of this service are busy; requests arrive faster than the database answers them"


@contextmanager
def translated(database: str) -> Iterator[None]:
    """Raise StoreUnavailable, with the database's name, in place of a driver's error about an unusable database.

    Other errors (a wrong statement, a violated constraint) pass unchanged.
    """
    try:
        yield
    except exc.TimeoutError as error:
        raise StoreUnavailable(f"database {database}: {_POOL_EMPTY}") from error
    except exc.DBAPIError as error:
        cause = explain(error)
        if cause is None:
            raise
        raise StoreUnavailable(f"database {database}: {cause} ({_first_line(error)})") from error


def explain(error: exc.DBAPIError) -> str | None:
    """Return the cause and the remedy. None for an error that does not mean that the database is unusable."""
    text = f"{type(error.orig).__name__}: {error.orig}"
    for pattern, cause in _CAUSES:
        if pattern in text:
            return cause
    outage = error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError)
    return _SERVER_GONE if outage else None


def _first_line(error: exc.DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
