"""The service's metrics for Prometheus. docs/observability.md lists them.

Each process counts its own work, so add up the counters of services that share a database. Only the values that are
read from the database at a scrape (`Levels`) are the same in all of them; take the largest.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_REQUEST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_PASS_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CALL_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# A recovery in place takes milliseconds, a new attempt on a busy cluster hours.
_RECOVERY_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400)
_WAIT_BUCKETS_S = (0.5, 1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400, 259200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Values from the database at a scrape. Ages are in seconds by cluster, without clusters that have none."""

    jobs_by_state: Mapping[str, int]
    oldest_queued_s: Mapping[str, float] = field(default_factory=dict)
    oldest_snapshot_s: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[tuple[str, str], float] = field(default_factory=dict)  # the last day's, by project and bin


class Metrics:
    """The metrics, in a registry of their own, so that two services in one process do not share them."""

    def __init__(self, *, version: str = "", clusters: Collection[str] = ()) -> None:
        """Each of `clusters` has its metrics from the start, so that alerts on counters that never rose can fire."""
        self._registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}  # by metric, also before its first value
        ProcessCollector(registry=self._registry)
        self.pass_seconds = self._histogram(
            "pass_seconds", "Duration of one pass of the supervisor.", ["cluster"], _PASS_BUCKETS_S
        )
        self.overlooked_changes = self._counter(
            "overlooked_changes", "Times that only the regular check of a job found something to do.", ["cluster"]
        )
        self.pass_failures = self._counter(
            "pass_failures", "Passes of the supervisor that an error ended.", ["cluster"]
        )
        self.backend_seconds = self._histogram(
            "backend_call_seconds",
            "Duration of a call to a cluster: submit, observe, cancel or slots.",
            ["cluster", "call"],
            _CALL_BUCKETS_S,
        )
        self.backend_errors = self._counter(
            "backend_call_errors",
            "Calls to a cluster that raised an error, by the error's class.",
            ["cluster", "call", "error"],
        )
        self.lease_held = self._gauge(
            "lease_held", "1 where this service supervises the cluster, 0 where it does not.", ["cluster"]
        )
        self.lease_losses = self._counter(
            "lease_losses", "Leases of a cluster that this service lost before it released them.", ["cluster"]
        )
        self.requests = self._counter(
            "requests", "HTTP requests answered; route is the pattern, not the path.", ["method", "route", "status"]
        )
        self.request_seconds = self._histogram(
            "request_seconds",
            "Time until an HTTP answer began; a stream continues after that.",
            ["method", "route"],
            _REQUEST_BUCKETS_S,
        )
        self.webhook_deliveries = self._counter(
            "webhook_deliveries",
            "Messages to webhooks by outcome of the try: delivered, failed (is retried) or given_up.",
            ["webhook", "outcome"],
        )
        self.webhook_oldest_due_s = self._gauge(
            "webhook_oldest_due_seconds",
            "Age of the oldest event that is due to be sent to the webhook; 0 if there is none.",
            ["webhook"],
        )
        self.queue_wait_seconds = self._histogram(
            "queue_wait_seconds",
            "How long jobs waited: in the service until the first attempt, in the cluster until an agent started.",
            ["queue"],
            _WAIT_BUCKETS_S,
        )
        self.recovery_seconds = self._histogram(
            "recovery_seconds",
            "Time from the end of a worker group to the next one, by kind of recovery: in-place, shrink, grow, "
            "new-attempt.",
            ["rung"],
            _RECOVERY_BUCKETS_S,
        )
        self.restarts = self._counter(
            "restarts",
            "Failures that training recovered from, by kind of recovery and the budget that was charged.",
            ["rung", "budget"],
        )
        self.attempts_ended = self._counter(
            "attempts_ended",
            "Ended attempts by state and kind of failure (none without one).",
            ["state", "kind"],
        )
        self.jobs_ended = self._counter("jobs_ended", "Jobs by the state in which they ended.", ["state"])
        self.node_failures = self._counter(
            "node_failures", "Failures of nodes that attempts report, by kind.", ["cluster", "kind"]
        )
        self.snapshots = self._counter(
            "snapshots", "Snapshots by outcome: committed, failed, skipped, quarantined.", ["outcome"]
        )
        self.spans_lost = self._counter("spans_lost", "Spans of traces that no collector received.", [])
        self._jobs = self._gauge("jobs", "Jobs by state.", ["state"])
        self._oldest_queued_s = self._gauge(
            "oldest_queued_seconds",
            "Age of the job that has waited longest in QUEUED; 0 if there is none.",
            ["cluster"],
        )
        self._oldest_snapshot_s = self._gauge(
            "oldest_snapshot_seconds",
            "Age of the oldest among the newest snapshots of the RUNNING jobs; jobs without snapshots do not count.",
            ["cluster"],
        )
        self._device_s = self._gauge(
            "device_seconds",
            "Device-seconds of the last day by project and goodput bin; the bins add up to the whole.",
            ["project", "bin"],
        )
        self._rendering = threading.Lock()  # callers may see different projects
        self._gauge("build_info", "1; the version is the label.", ["version"]).labels(version).set(1)
        self.clusters = tuple(clusters)
        for cluster in self.clusters:
            self.lease_held.labels(cluster).set(0)
            self.lease_losses.labels(cluster)
            self.pass_failures.labels(cluster)
            self.overlooked_changes.labels(cluster)
            self.pass_seconds.labels(cluster)

    def render(self, levels: Levels | None) -> bytes:
        """Render Prometheus text. If `levels` is None, the store does not answer and the gauges are left out."""
        with self._rendering:
            self._set(levels)
            return generate_latest(self._registry)

    def _set(self, levels: Levels | None) -> None:
        for gauge in (self._jobs, self._oldest_queued_s, self._oldest_snapshot_s, self._device_s):
            gauge.clear()
        if levels is not None:
            for state, count in levels.jobs_by_state.items():
                self._jobs.labels(state).set(count)
            for cluster in {*self.clusters, *levels.oldest_queued_s}:
                self._oldest_queued_s.labels(cluster).set(levels.oldest_queued_s.get(cluster, 0.0))
            for cluster, age_s in levels.oldest_snapshot_s.items():
                self._oldest_snapshot_s.labels(cluster).set(age_s)
            for (project, into), seconds in levels.device_s.items():
                self._device_s.labels(project, into).set(seconds)

    def _counter(self, name: str, help_text: str, labels: list[str]) -> Counter:
        return Counter(self._declare(name, labels), help_text, labels, registry=self._registry)

    def _gauge(self, name: str, help_text: str, labels: list[str]) -> Gauge:
        return Gauge(self._declare(name, labels), help_text, labels, registry=self._registry)

    def _histogram(self, name: str, help_text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(self._declare(name, labels), help_text, labels, buckets=buckets, registry=self._registry)

    def _declare(self, name: str, labels: list[str]) -> str:
        self.labels[f"orchestrator_{name}"] = tuple(labels)
        return f"orchestrator_{name}"
