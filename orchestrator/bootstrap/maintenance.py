"""Upgrade, check, copy and restore the configured database."""

from __future__ import annotations

from pathlib import Path

from orchestrator.bootstrap.database import make_root
from orchestrator.settings import Settings
from orchestrator.store import schema
from orchestrator.store.backup import back_up, restore
from orchestrator.store.engine import parse_url
from orchestrator.store.upgrade import upgrade


def upgrade_database(settings: Settings) -> str:
    """Upgrade the database's tables. Returns the database's name. Raises ConfigurationError, StoreUnavailable."""
    url = settings.resolved_database_url
    make_root(settings.root)
    upgrade(url)
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
