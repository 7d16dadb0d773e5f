"""Open the configured database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.bootstrap.from_settings import endpoints_of
from orchestrator.domain.errors import ConfigurationError
from orchestrator.settings import Settings
from orchestrator.store import schema
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
                schema.create(url)
        schema.check(url)
        yield stack.enter_context(Database(url, subscriptions=[each.webhook for each in endpoints_of(settings)]))
