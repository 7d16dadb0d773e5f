from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.domain.access.webhook import Webhook
from orchestrator.store.engine import Database
from tests.outbox.receiver import Receiver
from tests.outbox.world import World
from tests.store.conftest import backend, postgres_tables, sqlite_template, url

__all__ = ["backend", "postgres_tables", "sqlite_template", "url"]

HOOKS = (
    Webhook(name="audit", events=("*",), all_jobs=True),
    Webhook(name="pager"),
    Webhook(name="ops", events=("recovery.*", "job.state")),
)


@pytest.fixture
def world(url: str) -> Iterator[World]:
    database = Database(url, subscriptions=HOOKS)
    yield World(database)
    database.dispose()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running
