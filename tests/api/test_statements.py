"""How many statements a request sends to either database: at most three, apart from the exceptions listed here.

Counted are the statements that a transaction sends, not its BEGIN and its end. In PostgreSQL, each is a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import event

from deploy.dev.databases import scratch_database
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.intake.intake import Intake
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.store.engine import Database
from orchestrator.store.job_reader import JobReader
from orchestrator.store.upgrade import upgrade
from orchestrator.wire.reports import DesiredView, ReportBody
from tests.api.conftest import World, build_world
from tests.builders import NOW, make_batch, make_journal_event, make_progress
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import render_progress

MOST = 3
# Requests that may send more, by the state of their job, and why.
EXCEPTIONS: dict[tuple[str, str], tuple[int, str]] = {
    ("/api/v1/jobs/{job_id}/why", "running"): (
        4,
        "it reads the records of the nodes, which the next attempt may avoid",
    ),
    ("/api/v1/jobs/{job_id}/why", "queued"): (8, "it also reads the queue of the cluster, and when running jobs end"),
    ("/api/v1/jobs/{job_id}/why", "failed"): (
        6,
        "here it reads the secrets for each log; a service caches them for 5 s",
    ),
}
# They also read the history of each job that changed since the last answer, with as many statements.
OF_ALL_JOBS = ("/api/v1/goodput", "/metrics")
# More data may take more than is tested here: an array of more than 200 members, metrics with gaps and over 100,000
# steps, the search for the step at which a metric became NaN, steps that a restart repeats, the failed rank of a job
# under torchrun.
# Up to 500 reports share a transaction, which reads three tables, writes four, and reads what is desired.
REPORT = 8
# They read as long as they are open.
STREAMS = ("/api/v1/events", "/api/v1/jobs/{job_id}/events/stream")


@dataclass(frozen=True)
class Filled:
    """A service with a job in each of some states, by state."""

    world: World
    jobs: dict[str, str]

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Collect the statements, without BEGIN and without reads of the webhooks, which are cached for seconds."""
        found: list[str] = []

        def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if not statement.startswith("BEGIN") and "FROM webhooks" not in statement:
                found.append(statement)

        engine = self.world.database.engine
        event.listen(engine, "before_cursor_execute", record)
        try:
            yield found
        finally:
            event.remove(engine, "before_cursor_execute", record)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("statements")
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{folder / 'orchestrator.db'}"
        else:
            url = stack.enter_context(scratch_database(request.getfixturevalue("postgres")))
        upgrade(url)
        world = build_world(folder, stack.enter_context(Database(url)))
        stack.callback(world.client.close)
        yield fill(world)


def fill(world: World) -> Filled:
    jobs = {state: world.submit(labels={"team": "vision"}) for state in ("running", "failed", "queued")}
    world.advance(jobs["running"], JobState.STARTING, JobState.RUNNING)
    world.start(jobs["running"], state=AttemptState.RUNNING)
    failure = Failure(kind=FailureKind.HANG, message="rank 1 made no step for 60 s", rank=1)
    world.start(jobs["failed"], state=AttemptState.FAILED, created_at=NOW, ended_at=NOW, failure=failure)
    began = make_journal_event("generation.started", evidence={"world_size": 2, "pids": {"0": 1, "1": 2}})
    lines = [(9 + step, make_progress(step, seconds=step, metrics={"loss": 1.0})) for step in range(1, 6)]
    for state in ("running", "failed"):
        world.journals.ingest([make_batch(jobs[state], events=[(9, began)], progress=lines)], arrived_at=NOW)
    for rank in (0, 1):
        world.write_log(jobs["failed"], "working", where=f"1/g1/local-{rank}/log")
    world.advance(jobs["failed"], JobState.STARTING, JobState.FAILED)
    return Filled(world, jobs)


def test_each_reading_request_sends_few_statements(filled: Filled) -> None:
    client = filled.world.client
    array = filled.world.post_spec("/api/v1/arrays", sweep={"product": {"--lr": [1, 2]}}).json()["id"]
    paths = client.get("/openapi.json").json()["paths"]
    reading = [path for path, methods in paths.items() if "get" in methods and path not in STREAMS]
    assert len(reading) > 20
    jobs = len(client.get("/api/v1/jobs").json()["items"])
    many = []
    for path in [*reading, "/api/v1/jobs?state=RUNNING&q=demo&order=-updated", "/api/v1/jobs?label=team=vision"]:
        for state, job_id in filled.jobs.items():
            with filled.counted() as statements:
                answer = client.get(path.replace("{job_id}", job_id).replace("{array_id}", array))
            assert answer.status_code == 200, (path, state, answer.text)
            most = EXCEPTIONS.get((path, state), (MOST, ""))[0]
            if len(statements) > (most + MOST * jobs if path in OF_ALL_JOBS else most):
                many.append((path, state, statements))
    assert not many, many


def test_each_exception_is_one(filled: Filled) -> None:
    for path, state in EXCEPTIONS:
        with filled.counted() as statements:
            filled.world.client.get(path.replace("{job_id}", filled.jobs[state]))
        assert len(statements) > MOST, f"{path} of a job that is {state} is no exception any more"


def test_a_submission_sends_few_statements(filled: Filled) -> None:
    with filled.counted() as statements:
        filled.world.submit(labels={"team": "vision"})
    assert len(statements) <= MOST, statements
    with filled.counted() as statements:
        answer = filled.world.client.post("/api/v1/jobs", json=filled.world.spec(), headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201
    assert len(statements) <= MOST, statements  # one looks for the key, and there are no labels


def test_reports_send_as_few_statements_together_as_one_alone(filled: Filled) -> None:
    """Each of the tables of a report is read or written once, however many reports come together."""
    world, job_id = filled.world, filled.jobs["running"]
    jobs = JobReader(world.database)
    intake = Intake(world.journals, jobs, world.clock, partial(JobFolder, world.root))
    for count in (1, 50):
        line = json.dumps(render_progress(make_progress(9, generation=count, metrics={"loss": 1.0})))
        body = {"job_id": job_id, "attempt": 1, "progress": [line], "progress_to": len(line) + 1}
        reports = [ReportBody.model_validate({**body, "replica": 0, "incarnation": 1 + count})] * count
        with filled.counted() as statements:
            answers = intake.accept(reports)
        assert all(isinstance(answer, DesiredView) for answer in answers)
        assert len(statements) <= REPORT, statements


def test_a_full_page_sends_one_statement(filled: Filled) -> None:
    first = filled.world.client.get("/api/v1/jobs?limit=1").json()
    with filled.counted() as statements:
        rest = filled.world.client.get(f"/api/v1/jobs?limit=1&cursor={first['next_cursor']}").json()
    assert (len(first["items"]), len(rest["items"]), len(statements)) == (1, 1, 1)


def test_metrics_read_no_job_that_waits_for_its_first_attempt(filled: Filled) -> None:
    def count() -> int:
        filled.world.clock.moment += timedelta(seconds=30)  # longer than an answer is kept
        with filled.counted() as statements:
            assert filled.world.client.get("/metrics").status_code == 200
        return len(statements)

    count()
    before = count()
    for _ in range(3):
        filled.world.submit()
    assert count() == before
