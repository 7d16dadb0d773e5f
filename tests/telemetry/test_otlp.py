"""What a collector receives, parsed with the protocol's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.telemetry.otlp import OtlpExporter
from orchestrator.telemetry.spans import render_job, render_queue
from tests.builders import at, make_attempt, make_job
from tests.telemetry.collector import Received, collecting


@pytest.fixture
def collector() -> Iterator[Received]:
    with collecting() as received:
        yield received


JOB = make_job(created_at=at(0), state=JobState.FAILED, reason="its budget is spent", finished_at=at(2.5))


def test_spans_are_exported_by_otlp(collector: Received) -> None:
    exporter = OtlpExporter(collector.url + "/", version="1.2.3")
    root, queue = render_job(JOB, 1), render_queue(JOB, make_attempt(created_at=at(1)))
    assert exporter.export([root, queue])
    exporter.close()
    ((path, message),) = collector.requests
    assert path == "/v1/traces"
    (resource,) = message.resource_spans
    service = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert (service["service.name"], service["service.version"]) == ("orchestrator", "1.2.3")
    first, second = resource.scope_spans[0].spans
    assert (first.name, second.name) == ("job", "queue")
    assert first.trace_id == second.trace_id == root.trace_id.to_bytes(16, "big")
    assert second.parent_span_id == first.span_id == root.span_id.to_bytes(8, "big")
    assert first.parent_span_id == b""
    assert first.end_time_unix_nano - first.start_time_unix_nano == 2_500_000_000
    assert (first.status.code, first.status.message) == (2, "its budget is spent")
    attributes = {pair.key: pair.value for pair in first.attributes}
    assert attributes["job.id"].string_value == "job-1"
    assert attributes["attempts"].int_value == 1


def test_an_export_fails_if_the_collector_refuses_it(collector: Received) -> None:
    collector.status = 400
    exporter = OtlpExporter(collector.url, version="1.2.3")
    assert not exporter.export([render_job(replace(JOB, id="job-2"), 1)])
    exporter.close()
