"""Copy the database into one file while the service runs, and restore it from such a file."""

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
from orchestrator.store.dialect import store_time
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.sqlite import ServiceLock
from orchestrator.store.tables import JobRow, LeaseRow

_LONGEST_S = 3600
_PAGES_AT_ONCE = 1024


def back_up(url: str, target: Path) -> str:
    """Write a copy to `target`, which must not exist, and return how to restore it.

    A copy of SQLite is an SQLite database; a copy of PostgreSQL has pg_dump's custom format. Raises ConfigurationError,
    StoreUnavailable.
    """
    parsed = parse_url(url)
    if target.exists():
        raise ConfigurationError(f"{target} already exists; name a new file")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    file = sqlite_file(parsed)
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # as private as the database
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
    """Replace the database's content with a copy. On failure, the database is unchanged. No service may be running.

    A database that has jobs is overwritten only with `replace`. Raises ConfigurationError, StoreUnavailable,
    AlreadyRunning, and SchemaMismatch for a file that is no such copy or has a later version.
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
    with Database(url) as database, database.read() as session:
        held = session.scalars(select(LeaseRow.holder).where(LeaseRow.expires_at > store_time(session))).all()
        jobs = session.scalar(select(func.count()).select_from(JobRow))
    if held and database.file is None:
        raise ConfigurationError(f"services use this database ({', '.join(sorted(set(held)))}): stop all of them")
    if jobs and not replace:
        held_jobs = counted(jobs, "job")
        raise ConfigurationError(f"{database.name} holds {held_jobs}: back it up, then use --replace to overwrite it")


def _fill_sqlite(source: Path, target: Path) -> None:
    """SQLite does this in one transaction, which a crash rolls back."""
    try:
        copy = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)
        with closing(copy), closing(sqlite3.connect(target, timeout=10)) as database:
            copy.backup(database)
        target.chmod(0o600)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"database {target} cannot be restored: {error}") from error


def _copy_sqlite(file: Path, target: Path) -> None:
    """Copy page by page. SQLite starts again if another process writes meanwhile (sqlite.org/backup.html)."""
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
        raise ConfigurationError(f"{name} is not installed; install PostgreSQL's client programs")
    plain = _without_password(url)
    secret = {} if url.password is None else {"PGPASSWORD": str(url.password)}  # every user can read arguments
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
