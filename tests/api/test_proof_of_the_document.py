"""The checks of tests/api/openapi.py find faults."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.openapi import (
    closed_operations,
    count_good_answers,
    fault_of,
    requests_for,
    streaming_paths,
    unknown_parameters,
)

STREAM = {"200": {"content": {"text/event-stream": {}}}, "404": {"content": {"application/problem+json": {}}}}
OPERATION: dict[str, Any] = {"responses": STREAM, "parameters": [{"name": "last-event-id", "in": "header"}]}
DOCUMENT = {
    "paths": {
        "/events": {"get": OPERATION},
        "/jobs": {"get": {"responses": {"200": {"content": {"application/json": {}}}}}, "post": {"responses": {}}},
    }
}


METRICS = """# TYPE orchestrator_requests_total counter
orchestrator_requests_total{method="GET",route="/jobs",status="200"} 3.0
orchestrator_requests_total{method="POST",route="/jobs",status="200"} 1.0
orchestrator_requests_total{method="POST",route="/jobs",status="201"} 2.0
orchestrator_requests_total{method="GET",route="/events",status="401"} 7.0
orchestrator_requests_created{method="GET",route="/jobs",status="200"} 1.7e9
"""


def test_good_answers_are_counted_by_operation() -> None:
    assert count_good_answers(METRICS) == {("GET", "/jobs"): 3, ("POST", "/jobs"): 3}


def test_a_path_parameter_without_a_known_value_is_named() -> None:
    document = {"paths": {"/jobs/{job_id}": {}, "/hooks/{hook}/{job_id}": {}, "/jobs": {}}}
    assert unknown_parameters(document, {"job_id": []}) == ["hook"]


def test_operations_are_closed_where_the_document_says_so() -> None:
    closed = {"security": [{"token": []}, {}]}
    document = {
        "paths": {"/jobs": {"get": closed, "post": closed}, "/healthz": {"get": {}}, "/metrics": {"get": closed}}
    }
    assert closed_operations(document) == {("GET", "/jobs"), ("POST", "/jobs")}


def answer(status: int, kind: str, text: str = "") -> httpx.Response:
    return httpx.Response(status, headers={"content-type": kind}, text=text)


def test_streams_are_found_by_their_content_type() -> None:
    assert streaming_paths(DOCUMENT) == ["/events"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (answer(200, "text/event-stream", "retry: 2000\n\n"), None),
        (answer(200, "text/event-stream; charset=utf-8", ": still here\n"), None),
        (answer(404, "application/problem+json", "{}"), None),
        (answer(503, "application/problem+json", "{}"), "answered 503"),
        (answer(418, "application/problem+json", "{}"), "answered 418, which is not documented"),
        (answer(404, "text/html", "x"), "answered 404 with text/html, which is not documented"),
        (answer(200, "text/event-stream", "<html>"), "does not begin with a line of an event stream"),
    ],
)
def test_the_fault_of_a_stream_is_described(given: httpx.Response, fault: str | None) -> None:
    assert fault_of(given, OPERATION) == fault


def test_streams_are_requested_with_known_and_unknown_values() -> None:
    asked = list(requests_for("/jobs/{job_id}/events", OPERATION, {"job_id": ["a-1", "b-2"]}))
    assert {address.partition("?")[0] for address, _ in asked} == {
        "/jobs/a-1/events",
        "/jobs/b-2/events",
        "/jobs/nothing-of-that-name/events",
    }
    assert any("last-event-id" in headers for _, headers in asked)
