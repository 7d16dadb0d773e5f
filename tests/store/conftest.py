"""Databases for tests: SQLite in a file, PostgreSQL on a throw-away server (or ORCHESTRATOR_TEST_POSTGRES_URL)."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from deploy.dev.databases import scratch_database
from orchestrator.store import sqlite
from orchestrator.store.engine import Database
from orchestrator.store.upgrade import upgrade
from tests.store.harness import Stores

BACKENDS = ("sqlite", "postgresql")
# The rows of all other tables are deleted with their job.
_TABLES = (
    "jobs",
    "leases",
    "node_failures",
    "node_clearings",
    "deletions",
    "sessions",
    "tokens",
    "secrets",
    "webhooks",
)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "orchestrator.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def sqlite_tables(sqlite_template: Path) -> Iterator[Database]:
    path = sqlite_template.with_name("shared.db")
    shutil.copy(sqlite_template, path)
    with Database(f"sqlite:///{path}") as database:
        yield database


@pytest.fixture(scope="session")
def postgres_tables(postgres: str) -> Iterator[Database]:
    with scratch_database(postgres) as url:
        upgrade(url)
        with Database(url) as database:
            yield database


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without tables."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'orchestrator.db'}"
        return
    with scratch_database(request.getfixturevalue("postgres")) as url:
        yield url


@pytest.fixture
def url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with empty tables of the newest version. Tests share the tables and must not change them."""
    if backend == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "orchestrator.db")
        yield f"sqlite:///{tmp_path / 'orchestrator.db'}"
        return
    shared: Database = request.getfixturevalue("postgres_tables")
    yield shared.url.render_as_string(hide_password=False)
    _empty(shared)


@pytest.fixture
def open_stores(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Stores]]:
    """Opens more connections to the database, like other processes. All are closed at the end."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 120)  # a busy machine is slow
    with ExitStack() as stack:
        yield lambda: Stores(stack.enter_context(Database(url)))


@pytest.fixture
def database(backend: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database with empty tables. Tests share it, because a new engine compiles each statement again."""
    shared: Database = request.getfixturevalue("sqlite_tables" if backend == "sqlite" else "postgres_tables")
    yield shared
    _empty(shared)


@pytest.fixture
def stores(database: Database) -> Stores:
    return Stores(database)


def _empty(database: Database) -> None:
    with database.write() as session:
        for table in _TABLES:
            session.execute(text(f"DELETE FROM {table}"))


@pytest.fixture
def new_job() -> Callable[[], str]:
    """Unused ids, for tests that run many examples on one database."""
    return lambda: f"job-{uuid.uuid4().hex[:12]}"
