"""How many statements each reading request sends to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import NOW, make_batch, make_progress


@contextmanager
def counted(world: World) -> Iterator[list[str]]:
    """Collect the statements, without those that begin a transaction."""
    found: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            found.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", record)
    try:
        yield found
    finally:
        event.remove(world.database.engine, "before_cursor_execute", record)


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/jobs", 1),
        ("/jobs?state=RUNNING&q=demo&order=-updated", 1),
        ("/jobs?label=team=vision", 2),
        ("/jobs/ID", 1),
        ("/jobs/ID/attempts", 3),
        ("/jobs/ID/events", 2),
        ("/jobs/ID/snapshots", 2),
        ("/jobs/ID/workers", 2),
        ("/jobs/ID/stacks", 2),
        ("/jobs/ID/logs", 2),
        ("/jobs/ID/request", 1),
        ("/goodput", 2),
        ("/clusters", 4),
        ("/nodes", 1),
        ("/projects", 3),
        ("/tokens", 1),
        ("/webhooks", 0),
        ("/secrets?project=default", 1),
        # These read the history of a job from many tables.
        ("/jobs/ID/resources", 4),
        ("/jobs/ID/nodes", 5),
        ("/jobs/ID/metrics", 5),
        ("/jobs/ID/goodput", 9),
        ("/jobs/ID/why", 10),
    ],
)
def test_a_request_sends_few_statements(world: World, path: str, most: int) -> None:
    job_id = world.submit(labels={"team": "vision"})
    world.start(job_id)
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.journals.ingest([make_batch(job_id, 1, progress=[(9, make_progress(4))])], arrived_at=NOW)
    with counted(world) as statements:
        answer = world.client.get(f"/api/v1{path.replace('ID', job_id)}")
    assert answer.status_code == 200, answer.text
    assert len(statements) <= most, "\n".join(statements)


def test_a_full_page_sends_one_statement(world: World) -> None:
    for _ in range(3):
        world.start(world.submit())
    first = world.client.get("/api/v1/jobs?limit=2").json()
    with counted(world) as statements:
        rest = world.client.get(f"/api/v1/jobs?limit=2&cursor={first['next_cursor']}").json()
    assert (len(first["items"]), len(rest["items"]), len(statements)) == (2, 1, 1)


def test_metrics_read_no_job_that_waits_for_its_first_attempt(world: World) -> None:
    def count() -> int:
        with counted(world) as statements:
            assert world.client.get("/metrics").status_code == 200
        return len(statements)

    before = count()
    for _ in range(3):
        world.submit()
    world.clock.moment += timedelta(seconds=30)
    assert count() == before
