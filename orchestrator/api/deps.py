"""What handlers are given: the services behind them, bodies within their limits, and known query parameters only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from orchestrator.api.documents import parse_document
from orchestrator.api.errors import HttpProblem
from orchestrator.commands import Commands
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.spec import MAX_SPEC_BYTES, JobSpec
from orchestrator.domain.validation import parse_model, parse_spec
from orchestrator.logs import Logs
from orchestrator.queries import Queries
from orchestrator.telemetry import Metrics
from orchestrator.wire import DesiredView, ReportBody, RetryRequest

MAX_REPORT_BYTES = 8 * 1024 * 1024
_DRAINED_BYTES = 64 * 1024 * 1024  # of a body too long: read and forgotten, so that its sender gets the answer


class ReportIntake(Protocol):
    def accept(self, body: ReportBody) -> DesiredView:
        """Store a report and say what is desired of its attempt. Idempotent. Raises NotFound, InvalidSpec."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All that the API stands on. `closing` ends streams when the process is asked to stop."""

    commands: Commands
    queries: Queries
    intake: ReportIntake
    logs: Logs
    metrics: Metrics
    ready: Callable[[], tuple[bool, str]]
    version: str
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


async def _spec_bytes(request: Request) -> bytes:
    return await read_body(request, MAX_SPEC_BYTES)


async def _report_bytes(request: Request) -> bytes:
    return await read_body(request, MAX_REPORT_BYTES)


def _spec_body(request: Request, raw: Annotated[bytes, Depends(_spec_bytes)]) -> JobSpec:
    return parse_spec(parse_document(raw, request.headers.get("content-type")))


def _retry_body(request: Request, raw: Annotated[bytes, Depends(_spec_bytes)]) -> RetryRequest:
    if not raw.strip():
        return RetryRequest()
    return parse_model(RetryRequest, parse_document(raw, request.headers.get("content-type")))


def _report_body(request: Request, raw: Annotated[bytes, Depends(_report_bytes)]) -> ReportBody:
    return parse_model(ReportBody, parse_document(raw, request.headers.get("content-type")))


SpecBody = Annotated[JobSpec, Depends(_spec_body)]
RetryBody = Annotated[RetryRequest, Depends(_retry_body)]
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
