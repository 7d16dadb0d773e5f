"""SQLite as the database of one service: on a local disk only, and with one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path, PurePosixPath
from sqlite3 import Connection

from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from orchestrator.domain.errors import AlreadyRunning, ConfigurationError
from orchestrator.store.mounts import NETWORK_TYPES, file_system_of, parse_mountinfo

BUSY_TIMEOUT_S = 5.0
_CACHE_KB = 256  # of each connection. The kernel has the pages too, and dozens of full caches take a hundred megabytes
BEGIN = "sqlite_begin"  # the execution option with the statement that begins a transaction
_MOUNTINFO = Path("/proc/self/mountinfo")


def check_file(path: Path) -> None:
    """Raises ConfigurationError, with the remedy, for a database file that cannot work."""
    folder = path.parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"database {path}: folder {folder} does not exist; create it or change the database URL"
        )
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"database {path} is not a file; change the database URL")
    refuse_network_file_system(path, _mountinfo())
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigurationError(
            f"database {path}: folder {folder} is read-only; make it writable, because SQLite adds files there"
        )
    if path.exists() and not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise ConfigurationError(f"database {path}: the file is read-only; make it writable for the service's user")


def refuse_network_file_system(path: Path, mountinfo: str) -> None:
    """Raises ConfigurationError if `path` is on a file system on which SQLite can lose data."""
    kind = file_system_of(PurePosixPath(path.resolve()), parse_mountinfo(mountinfo))
    if kind in NETWORK_TYPES:
        raise ConfigurationError(
            f"database {path} is on a network file system ({kind}), where SQLite can lose data: "
            "put ORCHESTRATOR_DATABASE_URL on a local disk (sqlite:////var/lib/orchestrator/orchestrator.db) "
            "or use PostgreSQL"
        )


def _mountinfo() -> str:
    try:
        return _MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:  # not Linux, so nothing is refused
        return ""


def create_private(database: str | None) -> None:
    """Create the file with mode 0600, before SQLite creates it with another. An existing one keeps its mode."""
    if database and not database.startswith(":") and Path(database).parent.is_dir():
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))


def listen(engine: Engine, *, foreign_keys: bool) -> None:
    """Set up each new connection, and begin transactions with the statement of the execution option BEGIN.

    A transaction that writes must begin IMMEDIATE. One that begins with a read fails at once with "database is locked"
    if another wrote in between, whatever the busy timeout.
    """

    @event.listens_for(engine, "connect")
    def _set_up(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        assert isinstance(connection, Connection)
        connection.isolation_level = None  # the driver would send BEGIN too late; `_begin` sends it
        for pragma in (
            f"busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",
            "journal_mode = WAL",
            f"cache_size = {-_CACHE_KB}",
            "synchronous = NORMAL",
            f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: SqlConnection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


class ServiceLock:
    """Lets one service use an SQLite file: an OS lock on `<file>.lock`, until it is released or the process ends."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock without waiting. Raises AlreadyRunning, with the holder's pid, if another service has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConfigurationError(f"cannot lock {self._path}: {error.strerror}") from error
            raise AlreadyRunning(
                f"another service (process {holder}) uses {self._database}: stop it first, give this one a database of "
                "its own, or use PostgreSQL, which several services can share"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays; if it were removed, two services could lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
