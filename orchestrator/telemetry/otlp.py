"""Send spans to an OpenTelemetry collector, by OTLP over HTTP. The only module that needs the extra `otel`.

The exporter reads its other settings from the variables of OpenTelemetry's specification
(OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from orchestrator.telemetry.spans import Span

_TIMEOUT_S = 10
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """Implements traces.Exporter. `url` is the collector's address without `/v1/traces`."""

    def __init__(self, url: str, *, version: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S)
        self._resource = Resource.create({"service.name": "orchestrator", "service.version": version})
        self._scope = InstrumentationScope("orchestrator", version)

    def export(self, spans: Sequence[Span]) -> bool:
        readable = [self._readable(span) for span in spans]
        return self._exporter.export(readable) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
            resource=self._resource,
            attributes=dict(span.attributes),
            status=Status(StatusCode.OK) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_nanoseconds(span.began),
            end_time=_nanoseconds(span.ended),
            instrumentation_scope=self._scope,
        )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _nanoseconds(moment: datetime) -> int:
    """Return the nanoseconds since 1970, rounded to the microseconds of a datetime."""
    return int(moment.timestamp() * 1_000_000) * 1000
