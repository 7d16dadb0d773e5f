"""Connections to PostgreSQL that were used before: what their next use sends, and that a dead one is replaced."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select

from orchestrator.store.engine import Database

_PID = select(func.pg_backend_pid())


def _pid(database: Database) -> int:
    with database.ask() as connection:
        pid: int = connection.execute(_PID).scalar_one()
        return pid


def test_a_connection_that_was_used_before_is_used_again_without_a_question_of_its_own(
    postgres_tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *rest: Any, **named: Any) -> Any:
        sent.append(query)
        return execute(cursor, query, *rest, **named)

    with Database(postgres_tables.url.render_as_string(hide_password=False)) as database:
        first = _pid(database)
        monkeypatch.setattr(psycopg.Cursor, "execute", noted)
        assert _pid(database) == first
    assert len(sent) == 1


def test_a_connection_that_the_server_ended_is_replaced(postgres_tables: Database) -> None:
    ended = _pid(postgres_tables)
    url = postgres_tables.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [ended])
    assert _pid(postgres_tables) != ended
