"""Committed events become spans, each once. If a collector or the store fails, only spans are lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Semaphore

import pytest
from structlog.testing import capture_logs

from orchestrator.bootstrap.service import build
from orchestrator.domain.errors import ConfigurationError, StoreUnavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import JobState
from orchestrator.settings import Settings, load_settings
from orchestrator.store.engine import Database
from orchestrator.store.upgrade import upgrade
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.spans import Span
from orchestrator.telemetry.traces import Traces
from tests.builders import at, make_attempt, make_batch, make_event, make_progress
from tests.store.harness import Stores
from tests.telemetry.scrape import value


@dataclass
class Collector:
    """Implements traces.Exporter."""

    answers: bool = True
    error: Exception | None = None
    spans: list[Span] = field(default_factory=list)
    came: Semaphore = field(default_factory=lambda: Semaphore(0))
    closed: bool = False

    def export(self, spans: Sequence[Span]) -> bool:
        self.spans += spans
        self.came.release()
        if self.error is not None:
            raise self.error
        return self.answers

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'orchestrator.db'}"
    upgrade(url)
    with Database(url) as database:
        yield database


@pytest.fixture
def stores(database: Database) -> Stores:
    return Stores(database)


def _traces(stores: Stores, collector: Collector) -> tuple[Traces, Metrics]:
    metrics = Metrics()
    return Traces(stores.reader, stores.history, collector, metrics), metrics


def _attempt_event(state: AttemptState, number: int = 1) -> Event:
    return make_event(EventKind.ATTEMPT_STATE, attempt=number, evidence={"state": state.value})


def _job_event(state: JobState) -> Event:
    return make_event(EventKind.JOB_STATE, evidence={"state": state.value})


def _live_through(stores: Stores) -> None:
    """Write a whole job, as supervisor and intake do."""
    job, attempt = stores.add(created_at=at(0)), make_attempt(created_at=at(5))
    starting = job.to(JobState.STARTING, reason="has slots", now=at(5))
    stores.apply(starting, attempt, _job_event(JobState.STARTING), _attempt_event(AttemptState.INTENDED))
    running = replace(attempt, state=AttemptState.RUNNING, started_at=at(6))
    stores.apply(starting, running, _attempt_event(AttemptState.RUNNING))
    stores.ingest(
        make_batch(progress=[(10, make_progress(1, seconds=20)), (20, make_progress(2, seconds=22))]),
    )
    stores.ingest(make_batch(progress=[(30, make_progress(3, seconds=24))]))
    done = running.to(AttemptState.SUCCEEDED, reason="all replicas are done", now=at(60))
    over = starting.to(JobState.SUCCEEDED, reason="it trained", now=at(60))
    stores.apply(over, done, _attempt_event(AttemptState.SUCCEEDED), _job_event(JobState.SUCCEEDED))


def test_a_job_is_exported_from_submission_to_end(database: Database, stores: Stores) -> None:
    collector = Collector()
    traces, metrics = _traces(stores, collector)
    database.listen(traces.enqueue)
    traces.start()
    _live_through(stores)
    for _ in range(4):
        assert collector.came.acquire(timeout=300)
    traces.stop()
    times = [(span.name, span.began, span.ended) for span in collector.spans]
    assert times == [
        ("queue", at(0), at(5)),
        ("start", at(5), at(22)),
        ("first step", at(0), at(22)),
        ("attempt 1", at(5), at(60)),
        ("job", at(0), at(60)),
    ]
    assert collector.closed
    assert value(metrics, "orchestrator_spans_lost_total") == 0


@pytest.mark.parametrize("collector", [Collector(answers=False), Collector(error=RuntimeError("a defect"))])
def test_spans_that_do_not_arrive_are_counted(stores: Stores, collector: Collector) -> None:
    stores.add_with_attempt()
    traces, metrics = _traces(stores, collector)
    with capture_logs():
        traces.export("job-1", _job_event(JobState.FAILED))
        traces.export("job-1", _job_event(JobState.FAILED))
    assert value(metrics, "orchestrator_spans_lost_total") == 2


def test_spans_of_a_deleted_job_are_lost(stores: Stores) -> None:
    collector = Collector()
    traces, metrics = _traces(stores, collector)
    with capture_logs() as logs:
        traces.export("job-gone", _job_event(JobState.FAILED))
    assert collector.spans == []
    assert value(metrics, "orchestrator_spans_lost_total") == 1
    assert logs[0]["job"] == "job-gone"


def test_spans_are_lost_if_the_store_does_not_answer(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(job_id: str) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(stores.reader, "standing", silent)
    traces, metrics = _traces(stores, Collector())
    with capture_logs():
        traces.export("job-1", _job_event(JobState.FAILED))
    assert value(metrics, "orchestrator_spans_lost_total") == 1


def test_only_events_that_end_a_span_are_queued(stores: Stores) -> None:
    """The queue of 10,000 events is not emptied here."""
    traces, metrics = _traces(stores, Collector())
    others = [
        _job_event(JobState.RUNNING),
        _attempt_event(AttemptState.RUNNING),
        _attempt_event(AttemptState.INTENDED, 2),
        make_event("agent.started"),
    ]
    for _ in range(4000):
        traces.enqueue([("job-1", event) for event in others])
    assert value(metrics, "orchestrator_spans_lost_total") == 0
    for _ in range(4000):
        traces.enqueue([("job-1", _job_event(JobState.FAILED))] * 3)
    assert value(metrics, "orchestrator_spans_lost_total") == 2000


def test_without_opentelemetry_the_error_says_what_to_install(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orchestrator.telemetry.otlp", None)
    with pytest.raises(ConfigurationError, match=r"elastic-orchestrator\[otel\]"):
        build(Settings(root=tmp_path, otlp_url="http://collector.example:4318"), database, "http://127.0.0.1:8700")


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", "http://user:password@collector", ""])
def test_an_invalid_collector_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_OTLP_URL", url)
    with pytest.raises(ConfigurationError, match="ORCHESTRATOR_OTLP_URL"):
        load_settings()
