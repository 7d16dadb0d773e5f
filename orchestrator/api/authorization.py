"""Authentication and authorization of every route, before the body of a request is read."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from orchestrator.api.agents import require_agent
from orchestrator.api.deps import Services, get_services
from orchestrator.api.errors import HttpProblem
from orchestrator.api.guesses import (
    TOKEN_NEEDED,
    count_guess,
    counting_guesses,
    find_bearer,
    require_few_guesses,
    require_rate,
)
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.access.route_roles import JobPlace, Rule, Scope, Verdict, find_rule, judge, needs_place
from orchestrator.domain.errors import Forbidden, NotFound, OrchestratorError, StoreUnavailable, Unauthenticated
from orchestrator.identity.gate import Credentials
from orchestrator.identity.job_places import JobPlaces
from orchestrator.identity.workers import NOT_ITS_TOKEN

SESSION_COOKIE = "orchestrator_session"
LOOK_AGAIN_S = 60.0  # how often the caller of an open stream is authorized again

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip")
_REQUESTS = "you send too many requests; retry after the time in Retry-After"


async def authorize(request: Request) -> None:
    """Authorize a request and store its caller in `request.state.caller`.

    Raises Unauthenticated, Forbidden, NotFound, StoreUnavailable; HttpProblem 429 above the rate limit.
    """
    services = await get_services(request)
    rule = find_rule(request.method, request.scope["route"].path)
    if rule is not None and rule.scope is Scope.PUBLIC:
        if request.method not in _SAFE_METHODS:  # a sign-in is a guess too
            count_guess(request, services)
        return
    if rule is not None and rule.scope is Scope.WORKER:
        await _identify_agent(request, services)
        return
    caller = await identify(request, services)
    if caller is not None:
        _count(services, f"caller {caller.name}")
    job = None if rule is None or caller is None else await _place(request, services, rule, caller)
    _raise_for(judge(rule, caller, project=request.path_params.get("project"), job=job), request, rule)
    request.state.caller = caller


def watch_access(request: Request, closing: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """Return a check whether a stream may continue. It ends when the service closes, and within LOOK_AGAIN_S after the
    caller lost access. A store that does not answer is no reason to end it."""
    looked_at = time.monotonic()

    async def may_continue() -> bool:
        nonlocal looked_at
        if closing():
            return False
        if time.monotonic() < looked_at + LOOK_AGAIN_S:
            return True
        looked_at = time.monotonic()
        try:
            await authorize(request)
        except StoreUnavailable:
            return True
        except HttpProblem as problem:
            return problem.kind == "too-many"  # the limit may be due to other requests, so this says nothing of access
        except OrchestratorError:
            return False
        return True

    return may_continue


async def identify(request: Request, services: Services) -> Principal | None:
    """Return the caller of a request, or None without credentials.

    Raises Unauthenticated for an invalid token, HttpProblem 429 for too many of them.
    """
    gate = services.identity.gate
    with counting_guesses(request, services):
        given = _credentials(request, gate.proxy_header)
        known = gate.recall(given)
        if known is None:
            require_few_guesses(request, services)
        caller = await run_in_threadpool(gate.identify, given) if known is None else known.value
    if caller is not None and given.cookie is not None and request.method not in _SAFE_METHODS:
        _require_our_page(request)
    return caller


def _count(services: Services, caller: str) -> None:
    """Raises HttpProblem 429 for a caller above the rate limit."""
    require_rate(services.identity.rate_limit.take(caller), _REQUESTS)


async def get_caller(request: Request) -> Principal:
    """Return the caller of a route that is not public."""
    caller: Principal = request.state.caller
    return caller


Caller = Annotated[Principal, Depends(get_caller)]


def require_role(caller: Principal, needed: Role, project: str) -> None:
    """Check the caller's role in a project that the body names. Raises Forbidden, also for a project that the caller
    may not see: the caller named the project."""
    if not caller.may(needed, project):
        raise Forbidden(f"this needs the role {needed} in project {project}, which {caller.name} does not have")


def require_sight(places: JobPlaces, caller: Principal, job_id: str) -> None:
    """Check that the caller may see a job that a query names. Raises NotFound, also for a job that the caller may not
    see."""
    place = places.find(job_id)
    if place is None or not caller.may(Role.VIEWER, place.project):
        raise NotFound(f"there is no job {job_id}")


async def _identify_agent(request: Request, services: Services) -> None:
    with counting_guesses(request, services):
        token = find_bearer(request)
    if token is None:
        _require_open(request, services)
    else:
        await require_agent(request, services, token)


def _require_open(request: Request, services: Services) -> None:
    """Accept a report without a token only on an open service. Raises Unauthenticated."""
    gate = services.identity.gate
    if gate.recall(_credentials(request, None, with_cookie=False)) is None or not gate.is_open:
        raise Unauthenticated(NOT_ITS_TOKEN)


def _credentials(request: Request, proxy_header: str | None, *, with_cookie: bool = True) -> Credentials:
    headers = request.headers
    return Credentials(
        peer=None if request.client is None else request.client.host,
        bearer=find_bearer(request),
        cookie=request.cookies.get(SESSION_COOKIE) if with_cookie and "cookie" in headers else None,
        user=None if proxy_header is None else _only_value(request, proxy_header),
        forwarded=any(name in headers for name in _FORWARDING),
    )


def _only_value(request: Request, header: str) -> str | None:
    """Return the header's value. None if it appears twice, because one of the two may be the caller's own."""
    values = request.headers.getlist(header)
    return values[0].strip() if len(values) == 1 else None


def _require_our_page(request: Request) -> None:
    """Refuse a change by cookie without an origin. A browser sends the cookie for pages of any site, but then also the
    origin, which the edge has checked."""
    if "origin" not in request.headers and "sec-fetch-site" not in request.headers:
        raise HttpProblem(
            "origin-not-allowed", "a change with a session cookie needs the header Origin; programs send a token"
        )


async def _place(request: Request, services: Services, rule: Rule, caller: Principal) -> JobPlace | None:
    if not needs_place(rule, caller):
        return None
    job_id, places = str(request.path_params.get("job_id")), services.identity.places
    return places.recall(job_id) or await run_in_threadpool(places.find, job_id)


def _raise_for(verdict: Verdict, request: Request, rule: Rule | None) -> None:
    if verdict is Verdict.ALLOWED:
        return
    if verdict is Verdict.UNAUTHENTICATED:
        raise Unauthenticated(TOKEN_NEEDED)
    if verdict is Verdict.HIDDEN:
        raise NotFound(_absent(request))
    if rule is None or rule.role is None:
        raise Forbidden("no role allows this")
    raise Forbidden(f"this needs the role {rule.role}; an admin grants roles with `orchestrator token create`")


def _absent(request: Request) -> str:
    """Return the same message as for a job or secret that does not exist, so that a caller cannot tell them apart."""
    named = request.path_params
    return (
        f"there is no job {named['job_id']}" if "job_id" in named else f"project {named['project']} has no such secret"
    )
