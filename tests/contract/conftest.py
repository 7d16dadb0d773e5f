"""One suite for every store: the simulator's in memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.store.engine import Database
from tests.contract.worlds import MemoryWorld, SqlWorld, World
from tests.store.conftest import postgres_tables, sqlite_template, url

__all__ = ["postgres_tables", "sqlite_template", "url"]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(backend: str, request: pytest.FixtureRequest) -> Iterator[World]:
    if backend == "memory":
        yield MemoryWorld()
        return
    with Database(request.getfixturevalue("url")) as database:
        yield SqlWorld(database)
