"""Export jobs as traces to a collector, in a thread of its own, so that a slow collector delays nothing else.

The service that writes the end of a span exports the span, once. If the collector or the store does not answer, the
span is lost; the events remain.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import structlog

from orchestrator.domain.errors import NotFound, Unavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import JobState
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.records import AttemptStanding
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.spans import Span, render_attempt, render_first_step, render_job, render_queue, render_start

log = structlog.get_logger()

_MOST_QUEUED = 10_000  # events
_PAGE = 200
_STOP_S = 3.0
_ENDED_JOBS = frozenset(state.value for state in JobState if state.terminal)
_EXPORTED_STATES = frozenset(state.value for state in AttemptState if state.terminal) | {AttemptState.INTENDED.value}


class Exporter(Protocol):
    """Where spans go."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Send spans. May block for seconds. Returns whether they arrived."""

    def close(self) -> None:
        """Stop, and drop what is being sent."""


class Traces:
    """A listener of the database, with the thread that exports."""

    def __init__(self, jobs: JobReader, history: HistoryReader, exporter: Exporter, metrics: Metrics) -> None:
        self._jobs = jobs
        self._history = history
        self._exporter = exporter
        self._metrics = metrics
        self._queue: queue.Queue[tuple[str, Event] | None] = queue.Queue(maxsize=_MOST_QUEUED)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def enqueue(self, news: Sequence[tuple[str, Event]]) -> None:
        """Queue the events that end a span. Never blocks."""
        for job_id, event in news:
            if not _ends_a_span(event):
                continue
            try:
                self._queue.put_nowait((job_id, event))
            except queue.Full:
                self._metrics.spans_lost.inc()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export what is queued, if that takes at most a few seconds."""
        try:
            self._queue.put_nowait(None)
            self._thread.join(timeout=_STOP_S)
        except queue.Full:
            pass
        self._exporter.close()

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            self.export(*queued)

    def export(self, job_id: str, event: Event) -> None:
        """Send the spans that end with this event."""
        try:
            spans = list(self._spans(job_id, event))
            if spans and self._exporter.export(spans):
                return
        except (NotFound, Unavailable) as error:  # the job was deleted, or the store does not answer
            log.warning("spans cannot be exported", job=job_id, reason=str(error))
            spans = []
        except Exception:
            # An error of one job must not end the traces of later ones.
            log.exception("spans cannot be exported", job=job_id)
            spans = []
        self._metrics.spans_lost.inc(max(1, len(spans)))

    def _spans(self, job_id: str, event: Event) -> Iterator[Span]:
        standing = self._jobs.standing(job_id)
        job = standing.job
        if event.kind == EventKind.JOB_STATE:
            yield render_job(job, standing.attempts)
            return
        found = self._attempt(job_id, event.attempt)
        if found is None:
            return
        if event.kind == EventKind.FIRST_STEP:
            yield render_start(job, found.attempt, event.at)
            if found.attempt.key.number == 1:
                yield render_first_step(job, event.at)
        elif event.evidence.get("state") != AttemptState.INTENDED:
            yield render_attempt(job, found.attempt, found.training)
        else:
            yield render_queue(job, found.attempt)

    def _attempt(self, job_id: str, number: int | None) -> AttemptStanding | None:
        cursor = None
        while True:
            page, cursor = self._history.attempts(job_id, limit=_PAGE, cursor=cursor)
            found = next((each for each in page if each.attempt.key.number == number), None)
            if found is not None or cursor is None:
                return found


def _ends_a_span(event: Event) -> bool:
    state = event.evidence.get("state")
    if event.kind == EventKind.JOB_STATE:
        return state in _ENDED_JOBS
    if event.kind == EventKind.ATTEMPT_STATE:
        return state in _EXPORTED_STATES and (state != AttemptState.INTENDED or event.attempt == 1)
    return event.kind == EventKind.FIRST_STEP
