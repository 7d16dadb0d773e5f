"""What handlers are given: the services behind them, bodies within their limits, and known query parameters only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from orchestrator.api.documents import parse_document
from orchestrator.api.errors import HttpProblem
from orchestrator.commands import Commands
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.spec import MAX_SPEC_BYTES, JobSpec
from orchestrator.domain.validation import parse_model, parse_spec
from orchestrator.inventory import Inventory
from orchestrator.logs import Logs
from orchestrator.queries import Queries
from orchestrator.telemetry import Metrics
from orchestrator.wire import DesiredView, ReportBody, RetryRequest, ScaleRequest, WebhookView

Parsed = TypeVar("Parsed")

MAX_REPORT_BYTES = 8 * 1024 * 1024
_SHORT_BYTES = 8 * 1024  # a millisecond of JSON or some of YAML
_DRAINED_BYTES = 64 * 1024 * 1024  # of a body too long: read and forgotten, so that its sender gets the answer


class ReportIntake(Protocol):
    def receive(self, body: ReportBody) -> Future[DesiredView]:
        """Store a report and say what is desired of its attempt. Idempotent. The future raises NotFound, InvalidSpec,
        Unavailable."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All that the API stands on. `closing` ends streams when the process is asked to stop."""

    commands: Commands
    queries: Queries
    inventory: Inventory
    intake: ReportIntake
    logs: Logs
    metrics: Metrics
    ready: Callable[[], tuple[bool, str]]
    version: str
    webhooks: Sequence[WebhookView] = ()
    hosts: tuple[str, ...] = ()  # names, without a port, that the service may be called by besides the loopback ones
    closing: Callable[[], bool] = _never


async def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Wired = Annotated[Services, Depends(get_services)]


async def refuse_unknown_query(request: Request) -> None:
    """A misspelt filter must not read as no filter."""
    route = request.scope.get("route")
    known = _query_names(route.dependant) if isinstance(route, APIRoute) else set()
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        there_are = f"known: {', '.join(sorted(known))}" if known else "there are none here"
        raise InvalidSpec(
            [FieldProblem(f"/query/{name}", f"is not a known parameter; {there_are}") for name in unknown]
        )


def _query_names(dependant: Dependant) -> set[str]:
    names = {parameter.alias for parameter in dependant.query_params}
    return names.union(*(_query_names(below) for below in dependant.dependencies))


async def _spec_body(request: Request) -> JobSpec:
    return await _parse(request, await read_body(request, MAX_SPEC_BYTES), parse_spec)


async def _retry_body(request: Request) -> RetryRequest:
    raw = await read_body(request, MAX_SPEC_BYTES)
    return await _parse(request, raw, partial(parse_model, RetryRequest)) if raw.strip() else RetryRequest()


async def _scale_body(request: Request) -> ScaleRequest:
    return await _parse(request, await read_body(request, _SHORT_BYTES), partial(parse_model, ScaleRequest))


async def _report_body(request: Request) -> ReportBody:
    return await _parse(request, await read_body(request, MAX_REPORT_BYTES), partial(parse_model, ReportBody))


async def _parse(request: Request, raw: bytes, parse: Callable[[object], Parsed]) -> Parsed:
    """A short body is parsed at once: another thread would cost more. A long one must not hold the other requests."""
    content_type = request.headers.get("content-type")
    if len(raw) <= _SHORT_BYTES:
        return parse(parse_document(raw, content_type))
    return await run_in_threadpool(lambda: parse(parse_document(raw, content_type)))


SpecBody = Annotated[JobSpec, Depends(_spec_body)]
RetryBody = Annotated[RetryRequest, Depends(_retry_body)]
ScaleBody = Annotated[ScaleRequest, Depends(_scale_body)]
Report = Annotated[ReportBody, Depends(_report_body)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")
]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=512)]


async def read_body(request: Request, limit: int) -> bytes:
    """Read a body of at most `limit` bytes, counted while it arrives. Raises HttpProblem 413."""
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > _DRAINED_BYTES:
            break
    if size > limit:
        raise HttpProblem("too-large", f"the body is larger than {limit} bytes, the most that is accepted here")
    return bytes(body)
