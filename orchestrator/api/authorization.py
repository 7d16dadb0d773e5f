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
from orchestrator.identity.workers import NOT_ITS_TOKEN

SESSION_COOKIE = "orchestrator_session"
LOOK_AGAIN_S = 60.0  # at who holds a stream open

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip")
_REQUESTS = "you send too many requests; retry after the time in Retry-After"


async def authorise(request: Request) -> None:
    """Raises Unauthenticated, Forbidden, NotFound; and StoreUnavailable. The caller is then `request.state.caller`."""
    services = await get_services(request)
    rule = find_rule(request.method, request.scope["route"].path)
    if rule is not None and rule.scope is Scope.PUBLIC:
        if request.method not in _SAFE_METHODS:  # signing in is a guess like another
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


def watched(request: Request, closing: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """Whether a stream that was let in goes on: not when the service closes, nor beyond a minute for a caller who would
    not be let in any more. What the store cannot say is no reason to end."""
    looked_at = time.monotonic()

    async def goes_on() -> bool:
        nonlocal looked_at
        if closing():
            return False
        if time.monotonic() < looked_at + LOOK_AGAIN_S:
            return True
        looked_at = time.monotonic()
        try:
            await authorise(request)
        except StoreUnavailable:
            return True
        except HttpProblem as problem:
            return problem.kind == "too-many"  # others were too quick: that says nothing of this caller
        except OrchestratorError:
            return False
        return True

    return goes_on


async def identify(request: Request, services: Services) -> Principal | None:
    """None: nobody known. Raises Unauthenticated for a token that does not hold, HttpProblem 429 for too many such."""
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
    """Of a route that is not public."""
    caller: Principal = request.state.caller
    return caller


Caller = Annotated[Principal, Depends(get_caller)]


def require_role(caller: Principal, needed: Role, project: str) -> None:
    """Of a project that a body names. Raises Forbidden, for a project that he does not see too: he named it himself."""
    if not caller.may(needed, project):
        raise Forbidden(f"this takes the role {needed} in project {project}, which {caller.name} does not have")


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
    """A header that stands twice may be the caller's own beside the proxy's: neither counts."""
    values = request.headers.getlist(header)
    return values[0].strip() if len(values) == 1 else None


def _require_our_page(request: Request) -> None:
    """A browser sends a cookie whoever asks it to; it also says who asks, and the edge has looked at what it says."""
    if "origin" not in request.headers and "sec-fetch-site" not in request.headers:
        raise HttpProblem("origin-not-allowed", "a change by a session needs the header Origin; programs send a token")


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
        raise Forbidden("nobody may do this")
    needed = f"the role {rule.role}"
    raise Forbidden(f"this takes {needed}; an admin gives roles with `orchestrator token create`")


def _absent(request: Request) -> str:
    """The words that there are for a thing that is really not there."""
    named = request.path_params
    return (
        f"there is no job {named['job_id']}" if "job_id" in named else f"project {named['project']} has no such secret"
    )
