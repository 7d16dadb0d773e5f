"""Every error answer is an RFC 9457 problem document. KINDS has all of them; the handlers here render them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from orchestrator.api.methods import build_allow
from orchestrator.domain.errors import (
    AttemptOver,
    Conflict,
    FieldProblem,
    Forbidden,
    InvalidSpec,
    NotFound,
    OrchestratorError,
    Refused,
    Unauthenticated,
    Unavailable,
)
from orchestrator.domain.field_rules import describe_rule
from orchestrator.domain.specs.validation import pointer_to
from orchestrator.wire.problems import FieldError, Problem
from orchestrator.wire.reports import DesiredView, ReportRefusal

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
SIGN_IN = "/sign-in"

ProblemPage = Callable[[Problem, str | None], str]  # the second argument is the id of a job that was not found


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    title: str


KINDS: dict[str, Kind] = {
    "malformed": Kind(400, "The request cannot be read"),
    "token-in-url": Kind(400, "The URL contains a token"),
    "host-not-allowed": Kind(400, "The host name is not allowed"),
    "unauthenticated": Kind(401, "Authentication is required"),
    "forbidden": Kind(403, "Permission denied"),
    "origin-not-allowed": Kind(403, "The request comes from another site"),
    "not-found": Kind(404, "Not found"),
    "method-not-allowed": Kind(405, "The method is not allowed here"),
    "another-service": Kind(421, "Another service answers here"),
    "conflict": Kind(409, "The request conflicts with the current state"),
    "too-slow": Kind(408, "The request takes too long"),
    "too-large": Kind(413, "The request is too large"),
    "too-many": Kind(429, "Too many requests"),
    "unsupported-type": Kind(415, "The content type is not supported"),
    "invalid": Kind(422, "Some fields are invalid"),
    "refused": Kind(422, "The request cannot be carried out"),
    "internal": Kind(500, "The service failed"),
    "busy": Kind(503, "The service is busy"),
    "unavailable": Kind(503, "A part of the service does not answer"),
}
_BY_STATUS = {404: "not-found", 405: "method-not-allowed", 413: "too-large", 415: "unsupported-type"}

# First match wins.
_BY_ERROR: tuple[tuple[type[OrchestratorError], str], ...] = (
    (NotFound, "not-found"),
    (Unauthenticated, "unauthenticated"),
    (Forbidden, "forbidden"),
    (InvalidSpec, "invalid"),
    (Conflict, "conflict"),
    (Refused, "refused"),
    (Unavailable, "unavailable"),
)


class HttpProblem(Exception):
    """A problem of HTTP itself, for example a body that is too large. `wait_s` becomes the header Retry-After."""

    def __init__(self, kind: str, detail: str, *, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.wait_s = wait_s


def build_problem(kind: str, detail: str, errors: list[FieldProblem] | None = None) -> Problem:
    row = KINDS[kind]
    fields = [FieldError(pointer=problem.pointer, detail=problem.message) for problem in errors or []]
    return Problem(type=f"/problems/{kind}", title=row.title, status=row.status, detail=detail, errors=fields)


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    retry = {"Retry-After": str(RETRY_AFTER_S)} if problem.status == 503 else {}
    return Response(problem.model_dump_json(), problem.status, {**retry, **(headers or {})}, media_type=MEDIA_TYPE)


def problem_of(error: Exception) -> Problem | None:
    """Return the problem document of an error. None for an unexpected error."""
    if isinstance(error, HttpProblem):
        return build_problem(error.kind, error.detail)
    if isinstance(error, RequestValidationError):
        return _problem_of_parameters(error)
    if isinstance(error, HTTPException):
        return _problem_of_status(error)
    if isinstance(error, AttemptOver):
        return _refusal_of_report(error)
    for kind, name in _BY_ERROR:
        if isinstance(error, kind):
            fields = list(error.problems) if isinstance(error, InvalidSpec) else []
            return build_problem(name, str(error), fields)
    return None


def install_handlers(app: FastAPI, page: ProblemPage | None) -> None:
    """`page` renders a problem for a browser that asked for HTML outside `/api`."""

    allow = build_allow(app)

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {"Allow": allow(request.url.path)}
        problem = problem_of(error)
        if problem is None:
            raise error
        _forget_cause(error)
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        if isinstance(error, HttpProblem) and error.wait_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.wait_s)))
        if problem.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
            if page is not None and _wants_html(request) and request.method == "GET":
                return RedirectResponse(f"{SIGN_IN}?next={quote(_address_of(request), safe='')}", 303)
        if page is not None and _wants_html(request):
            return HTMLResponse(page(problem, _missing_job(request, problem)), problem.status, headers)
        return respond(problem, headers)

    for kind in (OrchestratorError, HttpProblem, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def _forget_cause(error: Exception) -> None:
    """Drop the frames of an error: they keep the request's body in memory until the next garbage collection."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


def _refusal_of_report(error: AttemptOver) -> ReportRefusal:
    """Refuse a report, with the desired state `stop`, because an agent that was cut off for an hour must stop."""
    return ReportRefusal(**vars(build_problem("forbidden", str(error))), desired=DesiredView(state="stop"))


def _problem_of_parameters(error: RequestValidationError) -> Problem:
    fields = [FieldProblem(pointer_to(detail["loc"]), describe_rule(detail)) for detail in error.errors()]
    text = "; ".join(f"{problem.pointer}: {problem.message}" for problem in fields)
    return build_problem("invalid", text, fields)


def _problem_of_status(error: HTTPException) -> Problem:
    kind = _BY_STATUS.get(error.status_code)
    if kind is not None:
        hint = "" if error.headers is None else f"; allowed: {error.headers.get('Allow', '')}"
        return build_problem(kind, f"{KINDS[kind].title}{hint if kind == 'method-not-allowed' else ''}.")
    title = str(error.detail)
    return Problem(type="about:blank", title=title, status=error.status_code, detail=title)


def _missing_job(request: Request, problem: Problem) -> str | None:
    """Return the job id in the path of a request that got 404: no such job, or a job that the caller may not see."""
    return request.path_params.get("job_id") if problem.status == 404 else None


def _wants_html(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


def _address_of(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path
