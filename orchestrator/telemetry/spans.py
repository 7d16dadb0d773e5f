"""Render a job as a trace: its spans with their names, times and ids. Pure.

    job                       from the submission to the end
      queue                     from the submission to the first attempt
      first step                from the submission to the first step that any attempt completed
      attempt 1                 from its intent to its end
        start                     from its intent to its first completed step

Ids are hashes of the job's id and the span's key, so any service can export any span of a trace, at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.observation import Training

Attributes = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span. Ids are those of W3C Trace Context: 16 bytes for a trace, 8 for a span."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    began: datetime
    ended: datetime
    attributes: Attributes
    error: str | None = None  # why the span failed


def render_queue(job: Job, attempt: Attempt) -> Span:
    """Render the wait for the first attempt."""
    return _span(job, _Branch("queue", _root(job)), (job.created_at, attempt.created_at), {})


def render_first_step(job: Job, at: datetime) -> Span:
    """Render the time from the submission to the first completed step."""
    return _span(job, _Branch("first step", _root(job)), (job.created_at, at), {})


def render_start(job: Job, attempt: Attempt, at: datetime) -> Span:
    """Render the time from the intent of an attempt to its first completed step."""
    name = _attempt(attempt)
    return _span(job, _Branch("start", name, f"{name}/start"), (attempt.created_at, at), _of(attempt))


def render_attempt(job: Job, attempt: Attempt, training: Training) -> Span:
    """Render an attempt that has ended."""
    figures: dict[str, str | int] = {"restarts": training.restarts, "shrinks": training.shrinks}
    figures |= {} if training.step is None else {"step": training.step}
    failure = attempt.failure
    figures |= {} if failure is None else {"failure.kind": failure.kind.value}
    good = attempt.state in (AttemptState.SUCCEEDED, AttemptState.CANCELLED)
    return _span(
        job,
        _Branch(_attempt(attempt), _root(job)),
        (attempt.created_at, attempt.ended_at or attempt.created_at),
        {**_of(attempt), "state": attempt.state.value, **figures},
        error=None if good else attempt.reason,
    )


def render_job(job: Job, attempts: int) -> Span:
    """Render a job that has ended. A retried job gets another such span with the same start."""
    return _span(
        job,
        _Branch("job", None, _root(job)),
        (job.created_at, job.finished_at or job.updated_at),
        {"state": job.state.value, "reason": job.reason, "attempts": attempts},
        error=job.reason if job.state is JobState.FAILED else None,
    )


def _root(job: Job) -> str:
    return f"job/{job.retries_done}"


def _attempt(attempt: Attempt) -> str:
    return f"attempt {attempt.key.number}"


def _of(attempt: Attempt) -> Attributes:
    handle = {} if attempt.handle is None else {"handle": attempt.handle}
    return {"attempt": attempt.key.number, "nodes": attempt.nodes, **handle}


@dataclass(frozen=True, slots=True)
class _Branch:
    """A span's place in its job's tree."""

    name: str
    parent: str | None  # the parent's key; None for the root
    key: str | None = None  # unique within the job; None means `name`


def _span(
    job: Job,
    branch: _Branch,
    times: tuple[datetime, datetime],
    attributes: Attributes,
    error: str | None = None,
) -> Span:
    """Build a span from its start and end. They may come from two clocks, so an end before the start is corrected."""
    spec, (began, ended) = job.spec, times
    common = {"job.id": job.id, "job.name": spec.name, "job.project": spec.project, "job.cluster": spec.cluster}
    return Span(
        name=branch.name,
        trace_id=int.from_bytes(_digest(job.id)[:16], "big"),
        span_id=_span_id(job, branch.key or branch.name),
        parent_id=None if branch.parent is None else _span_id(job, branch.parent),
        began=began,
        ended=max(began, ended),
        attributes={**common, **attributes},
        error=error,
    )


def _span_id(job: Job, what: str) -> int:
    return int.from_bytes(_digest(f"{job.id}/{what}")[:8], "big")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
