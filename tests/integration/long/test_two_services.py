"""Two services share a PostgreSQL database and a run directory. One supervises, the other waits and takes over."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from deploy.dev.databases import scratch_database
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.store.engine import Database
from orchestrator.store.upgrade import upgrade
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, until

LEASE_S = 2.0
FOREVER = "import time; time.sleep(600)"


class Pair:
    """The holder of the lease, and the service that waits for it."""

    def __init__(self, root: Path, database_url: str) -> None:
        self._url = database_url
        settings = {
            "ORCHESTRATOR_DATABASE_URL": database_url,
            "ORCHESTRATOR_LEASE_S": str(LEASE_S),
            "ORCHESTRATOR_LOCAL_SLOTS": "4",
            "ORCHESTRATOR_POLL_S": "0.1",
            "ORCHESTRATOR_STOP_TIMEOUT_S": "2",
        }
        self.first = ThrowawayService(root, settings, name="first")
        self.second = ThrowawayService(root, settings, name="second")

    def start(self) -> None:
        self.first.start()
        self.await_holder(self.first)
        self.second.start()

    def end(self) -> None:
        for service in (self.first, self.second):
            service.wake()
        self.first.kill()
        self.second.end()

    def holder(self) -> int | None:
        """The process that holds the lease now."""
        row = self._rows("SELECT holder FROM leases WHERE expires_at > clock_timestamp()")
        return int(row[0].split(":")[1].rstrip("'")) if row else None

    def await_holder(self, service: ThrowawayService) -> None:
        wait_for(lambda: self.holder() == service.pid, "change of the lease's holder")

    def tables(self) -> dict[str, list[str]]:
        """All rows, except the leases."""
        names = self._rows("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")
        return {name: sorted(self._rows(f'SELECT t::text FROM "{name}" t')) for name in names if name != "leases"}

    def _rows(self, query: str) -> list[str]:
        with psycopg.connect(self._url) as connection:
            return [row[0] for row in connection.execute(query.encode()).fetchall()]


@contextmanager
def client_of(service: ThrowawayService) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


def ready(service: ThrowawayService) -> tuple[int, str]:
    with urllib.request.urlopen(f"{service.url}/readyz", timeout=300) as answer:
        return answer.status, answer.read().decode()


@pytest.fixture
def pair(postgres: str, tmp_path: Path) -> Iterator[Pair]:
    with scratch_database(postgres) as url:
        upgrade(url)
        both = Pair(tmp_path / "runs", url)
        try:
            both.start()
            yield both
        finally:
            both.end()


def write_and_idle(database: Database) -> None:
    with database.write() as session:
        session.execute(text("CREATE TABLE rows (number INTEGER)"))
        session.execute(text("INSERT INTO rows VALUES (:number)"), [{"number": 1}, {"number": 2}])
        time.sleep(2)


def test_a_service_that_is_idle_within_a_transaction_loses_its_locks(postgres: str) -> None:
    """psycopg's pipeline for many rows would disable the server's timeout."""
    url = postgres + "&options=-c%20idle_in_transaction_session_timeout%3D500"
    with Database(url) as database, pytest.raises(StoreUnavailable):
        write_and_idle(database)


def test_the_second_service_waits_and_is_ready(pair: Pair) -> None:
    status, sentence = ready(pair.second)
    assert (status, "another service supervises" in sentence) == (200, True), sentence
    assert ready(pair.first)[0] == 200
    assert pair.holder() == pair.first.pid


def test_the_second_service_takes_over_after_a_kill_and_the_job_keeps_running(pair: Pair) -> None:
    with client_of(pair.second) as client:
        job = until(client, client.submit(python_job("import time; time.sleep(8)")).id, running)
        pair.first.kill()
        pair.await_holder(pair.second)
        done = until(client, job.id, ended)
        assert (done.state, done.attempts, done.restarts) == ("SUCCEEDED", 1, 0)


def test_sigterm_releases_the_lease(pair: Pair) -> None:
    with client_of(pair.second) as client:
        job = until(client, client.submit(python_job(FOREVER)).id, running)
        assert pair.first.stop() == 0
        assert pair.holder() != pair.first.pid, "the lease is released, not expired"
        pair.await_holder(pair.second)
        assert client.job(job.id).state == "RUNNING"
        announced = json.loads((pair.second.root / "service.json").read_text())
        assert announced["url"] == pair.second.url, "the first service leaves the second one's file"


def test_a_service_that_was_paused_beyond_its_lease_changes_nothing(pair: Pair) -> None:
    with client_of(pair.second) as client:
        job = until(client, client.submit(python_job(FOREVER)).id, running)
        pair.first.pause()
        pair.await_holder(pair.second)
        client.cancel(job.id)
        until(client, job.id, ended)
        before = pair.tables()
        pair.first.wake()
        wait_for(lambda: "another service supervises" in ready(pair.first)[1], "wait for the lease")
        assert pair.tables() == before
        assert pair.holder() == pair.second.pid
        pair.second.kill()
        pair.await_holder(pair.first)


def test_requests_may_go_to_either_service(pair: Pair) -> None:
    """A load balancer without sticky sessions sends requests to both."""
    with Client(pair.first.url) as one, Client(pair.second.url) as other:
        job = one.submit(python_job(FOREVER), idempotency_key="only-once")
        assert other.submit(python_job(FOREVER), idempotency_key="only-once").id == job.id
        until(other, job.id, running)
        assert [seen.id for seen in one.jobs()] == [seen.id for seen in other.jobs()] == [job.id]
        other.cancel(job.id)
        assert until(one, job.id, ended).state == "CANCELLED"
        kinds = [event.kind for event in one.events(job.id)]
        assert kinds == [event.kind for event in other.events(job.id)]
        assert kinds.count("job.submitted") == 1
