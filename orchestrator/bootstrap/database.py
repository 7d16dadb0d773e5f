"""Create, check, copy and open the configured database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.bootstrap.from_settings import endpoints_of
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.backup import back_up, restore
from orchestrator.store.engine import Database, parse_url, sqlite_file
from orchestrator.store.sqlite import ServiceLock


def make_root(root: Path) -> None:
    """Create the run directory with mode 0700. An existing one keeps its mode. Raises OSError."""
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)


def require_no_password(url: str) -> None:
    """Check a database URL that was given as an argument. Raises ConfigurationError."""
    if parse_url(url).password is not None:
        raise ConfigurationError(
            "--database-url contains a password, which every user of this machine can read in the process list; "
            "set ORCHESTRATOR_DATABASE_URL instead, or store the password in the file that PGPASSFILE names"
        )


def upgrade_database(settings: Settings) -> str:
    """Upgrade the database's tables. Returns the database's name. Raises ConfigurationError, StoreUnavailable."""
    url = settings.resolved_database_url
    make_root(settings.root)
    schema.upgrade(url)
    return parse_url(url).render_as_string(hide_password=True)


def check_database(settings: Settings) -> None:
    """Check that the tables have the version of this program. Raises SchemaMismatch."""
    schema.check(settings.resolved_database_url)


def back_up_database(settings: Settings, file: Path) -> str:
    """Copy the database into a new file. Returns how to restore it. Raises ConfigurationError, StoreUnavailable."""
    return back_up(settings.resolved_database_url, file)


def restore_database(settings: Settings, file: Path, *, replace: bool) -> str:
    """Replace the database's content with a copy. Returns its name. Raises what store.backup.restore does."""
    url = settings.resolved_database_url
    make_root(settings.root)
    restore(url, file, replace=replace)
    return parse_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Open the database after a check of its version. SQLite is locked for this process."""
    url = settings.resolved_database_url
    file = sqlite_file(parse_url(url))
    with contextlib.ExitStack() as stack:
        if file is not None:
            lock = ServiceLock(file)
            lock.acquire()
            stack.callback(lock.release)
            if schema.is_empty(url):
                schema.upgrade(url)
        schema.check(url)
        yield stack.enter_context(Database(url, subscriptions=[each.webhook for each in endpoints_of(settings)]))
