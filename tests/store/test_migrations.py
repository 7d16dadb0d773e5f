"""Each migration with live rows: what was known is carried over, up, down and up again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from alembic import command
from orchestrator.domain.access.identity import LOCAL
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import Desired
from orchestrator.store import schema
from orchestrator.store.engine import Database
from tests.builders import NOW, at, make_batch, make_event, make_journal_event, make_progress, make_spec
from tests.store.harness import Stores

# A job in the middle of its training as revision 0001 stored it.
_JOB = {
    "id": "job-1",
    "name": "demo",
    "project": "default",
    "cluster": "local",
    "spec": json.dumps(make_spec(priority=-7).model_dump(mode="json", by_alias=True)),
    "created_at": NOW,
    "idempotency_key": "k",
    "digest": "d1",
    "desired_cancelled": False,
    "desired_retry_number": 1,
    "state": "RUNNING",
    "reason": "trains",
    "updated_at": NOW,
    "retries_done": 1,
    "spent": json.dumps({"node": 2}),
    "fruitless": 0,
}
_ATTEMPT = {
    "job_id": "job-1",
    "number": 1,
    "state": "RUNNING",
    "reason": "runs",
    "nonce": "c0ffee",
    "nodes": "2:4",
    "port": 20000,
    "created_at": NOW,
}
_TRAINING = {"job_id": "job-1", "attempt": 1, "generation": 4, "step": 7, "restarts": 3, "restart_generation": 4}
_WORKER = {
    "job_id": "job-1",
    "attempt": 1,
    "replica": 0,
    "local_rank": 0,
    "incarnation": 1,
    "rank": 0,
    "world_size": 2,
    "generation": 4,
    "pid": 4711,
    "phase": "step",
    "step": 7,
    "at": at(5),
}
_EVENT = {"job_id": "job-1", "at": NOW, "kind": "job.submitted", "sentence": "s", "evidence": json.dumps({"a": 1})}


@pytest.fixture
def first_url(empty_url: str) -> str:
    """A database of revision 0001 with a job that trains."""
    schema.upgrade(empty_url, revision="0001")
    with _session(empty_url) as session:
        for table, row in _ROWS.items():
            _insert(session, table, row)
            if table == "trainings":
                _insert(session, "attempts", {**_ATTEMPT, "number": 2, "state": "LOST"})
                _insert(session, table, {**_TRAINING, "attempt": 2, "restarts": 0, "restart_generation": None})
    return empty_url


_ROWS: Mapping[str, Mapping[str, object]] = {
    "jobs": _JOB,
    "attempts": _ATTEMPT,
    "trainings": _TRAINING,
    "workers": _WORKER,
    "events": _EVENT,
    "job_labels": {"job_id": "job-1", "name": "team", "value": "vision"},
}


def test_a_job_that_trains_is_carried_over_from_0001(first_url: str) -> None:
    schema.upgrade(first_url)
    with _stores(first_url) as stores:
        (found,) = stores.supervisor.supervised("local")
        assert found.job.desired == Desired(retry_number=1)
        assert (found.job.spent, found.job.last_failure, found.job.recovering_since) == ({"node": 2}, None, None)
        attempts, _ = stores.history.attempts("job-1", limit=9, cursor=None)
        first = attempts[0].attempt
        assert (first.nodes, first.asked, first.excluded_nodes, first.marked_nodes) == ("2:4", "2:4", (), ())
        assert (first.tried_at, first.snapshots_told) == (None, 0)
        training = attempts[0].training
        assert (training.step, training.restarts, training.shrinks, training.pace) == (7, 3, 0, {})
        assert training.heard_at is None
        (word,) = stores.supervisor.ranks(AttemptKey("job-1", 1))
        assert word.heard_at == at(5)


def test_a_jobs_priority_is_read_from_its_spec(first_url: str) -> None:
    schema.upgrade(first_url, revision="0004")
    with _session(first_url) as session:
        older = make_spec().model_dump(mode="json", by_alias=True, exclude={"priority"})
        row = {**_JOB, "id": "job-2", "idempotency_key": "k2", "spec": json.dumps(older)}
        _insert(session, "jobs", {**row, "desired_number": 0})
    schema.upgrade(first_url)
    with _session(first_url) as session:
        found = session.execute(text("SELECT id, priority FROM jobs ORDER BY id")).all()
    assert [tuple(each) for each in found] == [("job-1", -7), ("job-2", 0)]


def test_a_key_from_before_there_were_callers_is_of_the_machines_user(first_url: str) -> None:
    """The service was open then: a request that is sent again after the upgrade is not a second job."""
    schema.upgrade(first_url)
    with _stores(first_url) as stores:
        repeated = stores.jobs.repeated("default", LOCAL.name, "k", "d1")
        assert repeated is not None
        assert (repeated.id, repeated.owner) == ("job-1", LOCAL.name)
        assert stores.jobs.repeated("default", "alice", "k", "d1") is None


def test_going_down_leaves_a_key_that_two_callers_used_to_the_first_job(first_url: str) -> None:
    schema.upgrade(first_url)
    with _stores(first_url) as stores:
        stores.add("job-2", key="k", created_at=at(1))
        stores.add("job-0", key="k", owner="bob", created_at=at(1))
        stores.add("job-3", key="other", owner="bob")
        stores.add("job-4", key="k", owner="bob", spec=make_spec(project="vision"))
    schema.downgrade(first_url, revision="0007")
    with _session(first_url) as session:
        found = session.execute(text("SELECT id, idempotency_key FROM jobs ORDER BY id")).all()
        assert [tuple(each) for each in found] == [
            ("job-0", None),
            ("job-1", "k"),
            ("job-2", None),
            ("job-3", "other"),
            ("job-4", "k"),
        ]
        with pytest.raises(Exception, match=r"(?i)unique"), session.begin_nested():
            session.execute(text("UPDATE jobs SET idempotency_key = 'k' WHERE id = 'job-0'"))
    schema.upgrade(first_url)
    _require_the_tables_of_the_code(first_url)


def test_what_was_counted_before_is_not_counted_again(first_url: str) -> None:
    schema.upgrade(first_url)
    with _stores(first_url) as stores:
        again = [(10 * g, make_journal_event("restart.in_place", generation=g)) for g in (3, 4, 5)]
        stores.ingest(make_batch(replica=1, events=again, progress=[(10, make_progress(8, generation=5))]))
        attempts, _ = stores.history.attempts("job-1", limit=9, cursor=None)
        assert attempts[0].training.restarts == 4
        assert stores.jobs.wish("job-1", Desired(number=1, suspended=True), make_event("suspend.requested"))


def test_a_database_may_go_down_and_up_again_without_loss(first_url: str) -> None:
    schema.upgrade(first_url)
    with _stores(first_url) as stores:
        restart = make_journal_event("restart.in_place", generation=9)
        stores.ingest(make_batch(replica=1, events=[(10, restart)], reported=True))
    schema.downgrade(first_url, revision="0001")
    with _session(first_url) as session:
        counted = session.execute(text("SELECT attempt, restart_generation FROM trainings ORDER BY attempt")).all()
        assert [tuple(row) for row in counted] == [(1, 9), (2, None)]
        tables = {
            name: session.scalar(text(f"SELECT count(*) FROM {name}")) for name in (*_ROWS, "journals", "reservations")
        }
    assert tables == {
        "jobs": 1,
        "attempts": 2,
        "trainings": 2,
        "workers": 1,
        "events": 2,
        "job_labels": 1,
        "journals": 1,
        "reservations": 0,
    }
    schema.upgrade(first_url)
    _require_the_tables_of_the_code(first_url)
    with _stores(first_url) as stores:
        assert stores.reader.standing("job-1").attempts == 2
        assert stores.events()[0].evidence == {"a": 1}


def test_rebuilt_tables_keep_their_rules(first_url: str) -> None:
    """SQLite rebuilds a table to drop a column of it: neither cascades nor conditions of indexes may get lost."""
    schema.upgrade(first_url)
    schema.downgrade(first_url, revision="0001")
    schema.upgrade(first_url)
    with _session(first_url) as session:
        if session.get_bind().dialect.name == "sqlite":
            index = session.scalar(text("SELECT sql FROM sqlite_master WHERE name = 'ix_jobs_retry_wished'"))
            assert "WHERE desired_retry_number > retries_done" in str(index)
        with pytest.raises(Exception, match=r"(?i)unique"), session.begin_nested():
            _insert(session, "jobs", {**_JOB, "id": "job-2", "owner": LOCAL.name, "desired_number": 0})
        session.execute(text("DELETE FROM jobs"))
        left = {name: session.scalar(text(f"SELECT count(*) FROM {name}")) for name in _ROWS}
    assert left == dict.fromkeys(_ROWS, 0)


def _insert(session: Session, table: str, row: Mapping[str, object]) -> None:
    values = dict(row)
    if session.get_bind().dialect.name == "sqlite":
        values = {name: _as_sqlite_stores(value) for name, value in row.items()}
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    session.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), values)


def _as_sqlite_stores(value: object) -> object:
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, type(NOW)) else value


def _require_the_tables_of_the_code(url: str) -> None:
    config = schema.build_config()
    database = Database(url, migrating=True)
    try:
        with open("/dev/null", "w") as nowhere, database.write() as session:  # noqa: PTH123
            config.stdout = nowhere
            config.attributes["connection"] = session.connection()
            command.check(config)
    finally:
        database.dispose()


@contextmanager
def _session(url: str) -> Iterator[Session]:
    database = Database(url)
    try:
        with database.write() as session:
            yield session
    finally:
        database.dispose()


@contextmanager
def _stores(url: str) -> Iterator[Stores]:
    database = Database(url)
    try:
        yield Stores(database)
    finally:
        database.dispose()
