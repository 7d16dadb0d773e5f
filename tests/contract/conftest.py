"""One suite for every store: the simulator's in memory, SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from tests.contract.worlds import MemoryWorld, SqlWorld, World
from tests.store.conftest import database, postgres_tables, sqlite_tables, sqlite_template, url

__all__ = ["database", "postgres_tables", "sqlite_tables", "sqlite_template", "url"]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(backend: str, request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if backend == "memory" else SqlWorld(request.getfixturevalue("database"))
