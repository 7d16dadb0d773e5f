"""SQLite as a server's database: local disk only, one service at a time, writers take turns."""

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
BEGIN = "sqlite_begin"  # the execution option that chooses how a transaction begins
_MOUNTINFO = Path("/proc/self/mountinfo")


def check_file(path: Path) -> None:
    """Refuse a database file that cannot work. Raises ConfigurationError that names the file and the remedy."""
    folder = path.parent
    if not folder.is_dir():
        raise ConfigurationError(f"database {path}: there is no folder {folder}; create it or change the database URL")
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"database {path}: it is not a file; change the database URL")
    refuse_network_file_system(path, _mountinfo())
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigurationError(
            f"database {path}: folder {folder} is read-only here; make it writable (SQLite adds files)"
        )
    if path.exists() and not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise ConfigurationError(
            f"database {path}: the file is read-only here; make it writable for the service's user"
        )


def refuse_network_file_system(path: Path, mountinfo: str) -> None:
    """Raises ConfigurationError where `path` lies on a file system on which SQLite loses data."""
    kind = file_system_of(PurePosixPath(path.resolve()), parse_mountinfo(mountinfo))
    if kind in NETWORK_TYPES:
        raise ConfigurationError(
            f"database {path} lies on a network file system ({kind}), where SQLite can lose data: "
            "put ORCHESTRATOR_DATABASE_URL on a local disk (sqlite:////var/lib/orchestrator/orchestrator.db) "
            "or use PostgreSQL"
        )


def _mountinfo() -> str:
    try:
        return _MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:  # no Linux, no knowledge: nothing is refused
        return ""


def create_private(database: str | None) -> None:
    """Make the file before SQLite does: what it holds is its owner's alone. One that is there stays as it is."""
    if database and not database.startswith(":") and Path(database).parent.is_dir():
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))


def listen(engine: Engine, *, foreign_keys: bool) -> None:
    """Set up each new connection, and let SQLAlchemy's transactions begin as the execution option BEGIN says.

    A transaction that will write begins IMMEDIATE: one that begins as a reader and writes later fails at once with
    "database is locked" when another wrote in between, whatever the busy time-out.
    """

    @event.listens_for(engine, "connect")
    def _set_up(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        assert isinstance(connection, Connection)
        connection.isolation_level = None  # the driver's own BEGIN comes too late; ours stands below
        for pragma in (
            f"busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: SqlConnection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


class ServiceLock:
    """The right to serve one SQLite file: an OS lock on `<file>.lock`, held until released or the process ends."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock at once. Raises AlreadyRunning, naming the holder's process, if another service has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConfigurationError(f"cannot lock {self._path}: {error.strerror}") from error
            raise AlreadyRunning(
                f"another service (process {holder}) works on {self._database}: stop it first, give this one a "
                "database of its own, or use PostgreSQL, which serves several"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back. Idempotent. The file stays: removing it would let two services lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
