"""Count committed events as metrics. Only the service that wrote an event counts it.

The evidence of agents is untrusted. Invalid numbers and unknown kinds are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import JobState
from orchestrator.domain.policy.budget import BUDGET_OF, budget_of
from orchestrator.telemetry.metrics import Metrics
from trainer.contract.exit_record import EventKind as JournalKind
from trainer.contract.failure import Failure, FailureKind, parse_failure

# Changes of the group, with the kind of recovery and the budget that is charged (domain.policy.budget).
_IN_PLACE = {
    JournalKind.RESTARTED_IN_PLACE.value: ("in-place", "application"),
    JournalKind.GROUP_SHRUNK.value: ("shrink", "node"),
    JournalKind.GROUP_GREW.value: ("grow", None),
}
_NEW_ATTEMPT = "new-attempt"
_RUNGS = (*(rung for rung, _ in _IN_PLACE.values()), _NEW_ATTEMPT)
_SNAPSHOTS = {
    JournalKind.SNAPSHOT_COMMITTED.value: "committed",
    JournalKind.SNAPSHOT_FAILED.value: "failed",
    JournalKind.SNAPSHOT_SKIPPED.value: "skipped",
    JournalKind.SNAPSHOT_QUARANTINED.value: "quarantined",
}
_ENDED_ATTEMPTS = frozenset(state.value for state in AttemptState if state.terminal)
_ENDED_JOBS = frozenset(state.value for state in JobState if state.terminal)
_FREE = "none"  # no budget is charged, for example for a taken port


class Tally:
    """A listener of the database."""

    def __init__(self, metrics: Metrics) -> None:
        """Start every counter at 0, because Prometheus sees no increase in a counter that first appears with 1."""
        self._metrics = metrics
        for state in _ENDED_JOBS:
            metrics.jobs_ended.labels(state)
        for outcome in _SNAPSHOTS.values():
            metrics.snapshots.labels(outcome)
        for rung, budget in _restarts():
            metrics.restarts.labels(rung, budget)
        for rung in _RUNGS:
            metrics.recovery_seconds.labels(rung)
        for cluster in metrics.clusters:
            for kind in FailureKind:
                metrics.node_failures.labels(cluster, kind.value)

    def count(self, news: Sequence[tuple[str, Event]]) -> None:
        """Count the events of one transaction."""
        for job_id, event in news:
            if event.kind in _IN_PLACE:
                self._group_changed(event)
            elif event.kind in _SNAPSHOTS:
                self._metrics.snapshots.labels(_SNAPSHOTS[event.kind]).inc()
            elif event.kind == EventKind.RECOVERED:
                self._recovered(_NEW_ATTEMPT, event)
            elif event.kind == EventKind.ATTEMPT_STATE:
                self._attempt(event, recovers=(job_id, JobState.RECOVERING) in _states(news))
            elif event.kind == EventKind.JOB_STATE and _text(event, "state") in _ENDED_JOBS:
                self._metrics.jobs_ended.labels(_text(event, "state")).inc()
            elif event.kind == EventKind.NODE_MARKED:
                self._metrics.node_failures.labels(_text(event, "cluster"), _text(event, "kind")).inc()

    def _group_changed(self, event: Event) -> None:
        rung, budget = _IN_PLACE[event.kind]
        self._recovered(rung, event)
        if budget is not None:
            self._metrics.restarts.labels(rung, budget).inc()

    def _recovered(self, rung: str, event: Event) -> None:
        seconds = event.number("seconds")
        if seconds is not None:
            self._metrics.recovery_seconds.labels(rung).observe(seconds)

    def _attempt(self, event: Event, *, recovers: bool) -> None:
        state = _text(event, "state")
        waited_s = event.number("waited_s")
        if waited_s is not None:
            queue = "service" if state == AttemptState.INTENDED else "cluster"
            self._metrics.queue_wait_seconds.labels(queue).observe(waited_s)
        if state in _ENDED_ATTEMPTS:
            failure = _failure(event)
            self._metrics.attempts_ended.labels(state, _FREE if failure is None else failure.kind.value).inc()
            if recovers and failure is not None:
                self._metrics.restarts.labels(_NEW_ATTEMPT, _paying_budget(event, failure)).inc()


def _restarts() -> Iterator[tuple[str, str]]:
    """Yield every kind of recovery with every budget that may be charged for it."""
    yield from ((rung, budget) for rung, budget in _IN_PLACE.values() if budget is not None)
    yield from ((_NEW_ATTEMPT, budget) for budget in sorted({*BUDGET_OF.values(), _FREE}))


def _states(news: Sequence[tuple[str, Event]]) -> set[tuple[str, str]]:
    return {(job_id, _text(event, "state")) for job_id, event in news if event.kind == EventKind.JOB_STATE}


def _text(event: Event, name: str) -> str:
    return str(event.evidence.get(name, ""))


def _paying_budget(event: Event, failure: Failure) -> str:
    """Return the budget that was charged for the end of an attempt."""
    budget, cost = budget_of(failure), event.evidence.get("cost")
    free = budget is None or (isinstance(cost, Mapping) and budget not in cost)
    return _FREE if free or budget is None else budget


def _failure(event: Event) -> Failure | None:
    document = event.evidence.get("failure")
    return parse_failure(document) if isinstance(document, Mapping) else None
