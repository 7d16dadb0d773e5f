"""What the service tells about itself: log lines (structlog) and numbers (Prometheus)."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from typing import TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PASS_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The service's numbers, in a registry of their own: two services in one process do not meet."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.pass_seconds = Histogram(
            "orchestrator_pass_seconds",
            "Duration of one pass of the supervisor.",
            ["cluster"],
            buckets=_PASS_BUCKETS_S,
            registry=self._registry,
        )
        self.pass_failures = Counter(
            "orchestrator_pass_failures",
            "Passes of the supervisor that an error ended.",
            ["cluster"],
            registry=self._registry,
        )
        self.requests = Counter(
            "orchestrator_requests",
            "HTTP requests answered; route is the pattern, not the path.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self.webhook_deliveries = Counter(
            "orchestrator_webhook_deliveries",
            "Messages to webhooks by outcome of the try: delivered, failed (is tried again) or given_up.",
            ["webhook", "outcome"],
            registry=self._registry,
        )
        self.webhook_oldest_due_s = Gauge(
            "orchestrator_webhook_oldest_due_seconds",
            "Age of the oldest event that is due to be sent to the webhook; 0 when nothing is.",
            ["webhook"],
            registry=self._registry,
        )
        self._jobs = Gauge("orchestrator_jobs", "Jobs by state.", ["state"], registry=self._registry)

    def render(self, jobs_by_state: Mapping[str, int] | None) -> bytes:
        """Prometheus text. None: the store does not answer, so no number of jobs is given rather than an old one."""
        self._jobs.clear()
        for state, count in (jobs_by_state or {}).items():
            self._jobs.labels(state=state).set(count)
        return generate_latest(self._registry)


class _Forgiving:
    """A stream that loses lines rather than its writer: a full disk or a reader that went must not end supervision."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(*, level: int = logging.INFO, human: bool | None = None) -> None:
    """Log to stderr: key-value for people on a terminal, one JSON object a line otherwise (or as `human` says)."""
    readable = sys.stderr.isatty() if human is None else human
    # Neither shows local variables: they may hold a user's secrets.
    if readable:
        plain = structlog.dev.plain_traceback
        rendering: list[structlog.typing.Processor] = [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    else:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        rendering = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )
