"""A job is one trace, with nested spans and ids that do not depend on the service."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.observation import Training
from orchestrator.telemetry.spans import Span, render_attempt, render_first_step, render_job, render_queue, render_start
from tests.builders import at, make_attempt, make_job
from trainer.contract.failure import Failure, FailureKind

JOB = make_job(created_at=at(0), state=JobState.SUCCEEDED, reason="it trained", finished_at=at(100))
FIRST = make_attempt(created_at=at(10), state=AttemptState.FAILED, reason="a node died", ended_at=at(50), handle="4711")
SECOND = replace(make_attempt(number=2, created_at=at(55), ended_at=at(100)), state=AttemptState.SUCCEEDED)


def _spans() -> dict[str, Span]:
    spans = [
        render_queue(JOB, FIRST),
        render_start(JOB, FIRST, at(20)),
        render_first_step(JOB, at(20)),
        render_attempt(JOB, FIRST, Training(step=7, restarts=2)),
        render_attempt(JOB, SECOND, Training()),
        render_job(JOB, 2),
    ]
    return {span.name: span for span in spans}


def test_all_spans_of_a_job_are_one_tree() -> None:
    spans = _spans()
    assert len({span.trace_id for span in spans.values()}) == 1
    assert len({span.span_id for span in spans.values()}) == len(spans) == 6
    root = spans["job"]
    assert root.parent_id is None
    for name in ("queue", "first step", "attempt 1", "attempt 2"):
        assert spans[name].parent_id == root.span_id
    assert spans["start"].parent_id == spans["attempt 1"].span_id


def test_spans_have_the_times_of_their_part_of_the_job() -> None:
    times = {name: (span.began, span.ended) for name, span in _spans().items()}
    assert times == {
        "job": (at(0), at(100)),
        "queue": (at(0), at(10)),
        "first step": (at(0), at(20)),
        "start": (at(10), at(20)),
        "attempt 1": (at(10), at(50)),
        "attempt 2": (at(55), at(100)),
    }


def test_ids_fit_w3c_trace_context_and_differ_between_jobs() -> None:
    span, other = render_job(JOB, 1), render_job(replace(JOB, id="job-2"), 1)
    assert 0 < span.trace_id < 2**128
    assert 0 < span.span_id < 2**64
    assert render_job(JOB, 1).span_id == span.span_id
    assert (span.trace_id, span.span_id) != (other.trace_id, other.span_id)


def test_a_retried_job_has_a_new_root_in_the_same_trace() -> None:
    again = replace(JOB, retries_done=1)
    assert render_job(again, 3).trace_id == render_job(JOB, 2).trace_id
    assert render_job(again, 3).span_id != render_job(JOB, 2).span_id
    assert render_attempt(again, SECOND, Training()).parent_id == render_job(again, 3).span_id


def test_a_failed_span_has_the_reason() -> None:
    spans = _spans()
    assert spans["attempt 1"].error == "a node died"
    assert (spans["attempt 2"].error, spans["job"].error) == (None, None)
    failed = replace(JOB, state=JobState.FAILED, reason="its budget is spent")
    assert render_job(failed, 2).error == "its budget is spent"


def test_attributes_name_the_job_and_the_outcome() -> None:
    failure = Failure(kind=FailureKind.NODE, message="silent")
    span = render_attempt(JOB, replace(FIRST, failure=failure), Training(step=7, restarts=2, shrinks=1))
    assert span.attributes == {
        "job.id": "job-1",
        "job.name": "demo",
        "job.project": "default",
        "job.cluster": "local",
        "attempt": 1,
        "nodes": "1",
        "handle": "4711",
        "state": "FAILED",
        "restarts": 2,
        "shrinks": 1,
        "step": 7,
        "failure.kind": "node",
    }


def test_a_span_never_ends_before_it_starts() -> None:
    """The first step has the worker's clock, the attempt the service's."""
    span = render_start(JOB, FIRST, at(3))
    assert span.ended == span.began == at(10)
