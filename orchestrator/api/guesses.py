"""Limits on requests with an invalid token, counted by client address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from orchestrator.api.deps import Services
from orchestrator.api.errors import HttpProblem
from orchestrator.domain.errors import Unauthenticated

TOKEN_NEEDED = "send a token as `Authorization: Bearer ...`; an admin creates one with `orchestrator token create`"
_GUESSES = "too many invalid tokens have come from this address; retry after the time in Retry-After"


@contextmanager
def counting_guesses(request: Request, services: Services) -> Iterator[None]:
    """Count an invalid token against the address that it came from."""
    try:
        yield
    except Unauthenticated:
        services.identity.guess_limit.take(_peer(request))
        raise


def count_guess(request: Request, services: Services) -> None:
    """Count a request as a guess, whatever its outcome. Raises HttpProblem 429."""
    require_rate(services.identity.guess_limit.take(_peer(request)), _GUESSES)


def require_few_guesses(request: Request, services: Services) -> None:
    """Refuse an address with too many guesses before the store is asked. Raises HttpProblem 429."""
    require_rate(services.identity.guess_limit.wait_s(_peer(request)), _GUESSES)


def require_rate(wait_s: float, what: str) -> None:
    """Raises HttpProblem 429 with the sentence `what` if `wait_s` is not 0."""
    if wait_s:
        raise HttpProblem("too-many", what, wait_s=wait_s)


def find_bearer(request: Request) -> str | None:
    """Return the bearer token of the request, or None. Raises Unauthenticated for another kind of credentials."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(TOKEN_NEEDED)
    return token.strip()


def _peer(request: Request) -> str:
    return "nowhere" if request.client is None else request.client.host
