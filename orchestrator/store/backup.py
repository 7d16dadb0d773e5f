"""A copy of the database in one file, of one moment, while the service goes on; and the way back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.engine import URL

from orchestrator.domain.counted import counted
from orchestrator.domain.errors import ConfigurationError, StoreUnavailable
from orchestrator.store import schema
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.sqlite import ServiceLock
from orchestrator.store.store_clock import store_time
from orchestrator.store.tables import JobRow, LeaseRow

_LONGEST_S = 3600
_PAGES_AT_ONCE = 1024


def back_up(url: str, target: Path) -> str:
    """Write the copy to `target`, which must not exist, and return how it is restored.

    SQLite's is a database itself; PostgreSQL's is what pg_dump writes in its custom format. Raises ConfigurationError,
    StoreUnavailable.
    """
    parsed = parse_url(url)
    if target.exists():
        raise ConfigurationError(f"{target} is there already; name a new file")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    file = sqlite_file(parsed)
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # it holds what the database holds
        if file is not None:
            _copy_sqlite(file, unfinished)
        else:
            _dump_postgres(parsed, unfinished)
        unfinished.rename(target)
    except OSError as error:
        raise ConfigurationError(f"the copy cannot be written to {target}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return f"stop the services; orchestrator db restore {target}"


def restore(url: str, source: Path, *, replace: bool) -> None:
    """Give the database the content of a copy: all of it, or where that fails what it had. No service may be running.

    With `replace` also over a database that holds jobs. Raises ConfigurationError, StoreUnavailable, AlreadyRunning,
    and SchemaMismatch for a copy that is none of ours or of a later version.
    """
    parsed = parse_url(url)
    if not source.is_file():
        raise ConfigurationError(f"there is no copy at {source}")
    file = sqlite_file(parsed)
    if file is not None:
        schema.require_ours(f"sqlite:///{source.resolve()}")
        lock = ServiceLock(file)
        lock.acquire()
        try:
            _require_room(url, replace=replace)
            _fill_sqlite(source, file)
        finally:
            lock.release()
        return
    _require_room(url, replace=replace)
    _fill_postgres(parsed, source)


def _require_room(url: str, *, replace: bool) -> None:
    if schema.is_empty(url):
        return
    database = Database(url)
    try:
        with database.read() as session:
            held = session.scalars(select(LeaseRow.holder).where(LeaseRow.expires_at > store_time(session))).all()
            jobs = session.scalar(select(func.count()).select_from(JobRow))
    finally:
        database.dispose()
    if held and database.file is None:
        raise ConfigurationError(f"a service works on this database ({', '.join(sorted(set(held)))}): stop all of them")
    if jobs and not replace:
        held_jobs = counted(jobs, "job")
        raise ConfigurationError(f"{database.name} holds {held_jobs}: back it up, then say --replace to lose them")


def _fill_sqlite(source: Path, target: Path) -> None:
    """In one transaction of the database itself, which a crash rolls back."""
    try:
        copy = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)
        with closing(copy), closing(sqlite3.connect(target, timeout=10)) as database:
            copy.backup(database)
        target.chmod(0o600)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"database {target} cannot be restored: {error}") from error


def _copy_sqlite(file: Path, target: Path) -> None:
    """https://www.sqlite.org/backup.html: page by page, begun anew where another process wrote meanwhile."""
    if not file.is_file():
        raise ConfigurationError(f"there is no database at {file}")
    try:
        source = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=10)
        with closing(source), closing(sqlite3.connect(target)) as copy:
            source.backup(copy, pages=_PAGES_AT_ONCE)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
    except sqlite3.Error as error:
        raise StoreUnavailable(f"database {file} cannot be copied: {error}") from error


def _dump_postgres(url: URL, target: Path) -> None:
    _run("pg_dump", url, "--format=custom", f"--file={target}")


def _fill_postgres(url: URL, source: Path) -> None:
    options = ("--clean", "--if-exists", "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error")
    _run("pg_restore", url, *options, str(source))


def _run(name: str, url: URL, *arguments: str) -> None:
    program = shutil.which(name)
    if program is None:
        raise ConfigurationError(f"{name} is not installed here; it comes with PostgreSQL's client programs")
    plain = _without_password(url)
    secret = {} if url.password is None else {"PGPASSWORD": str(url.password)}  # no argument: every user sees those
    done = subprocess.run(
        [program, f"--dbname={plain}", "--no-password", *arguments],
        env={**os.environ, **secret},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode != 0:
        raise StoreUnavailable(f"{name} failed: {done.stderr.strip()[-500:]}")


def _without_password(url: URL) -> str:
    plain = URL.create(  # `url.set(password=None)` would keep the password
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database, query=url.query
    )
    return plain.render_as_string(hide_password=False)
