"""Requests without a valid token, counted by the address that they came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from orchestrator.api.deps import Services
from orchestrator.api.errors import HttpProblem
from orchestrator.domain.errors import Unauthenticated

WHO = "send a token as `Authorization: Bearer ...`; an admin makes one with `orchestrator token create`"
_GUESSES = "too many tokens that do not hold have come from this address; come again when Retry-After says"


@contextmanager
def counting_guesses(request: Request, services: Services) -> Iterator[None]:
    """After too many of them the store is not asked about the next one."""
    try:
        yield
    except Unauthenticated:
        services.identity.strangers.take(_peer(request))
        raise


def count_guess(request: Request, services: Services) -> None:
    """Of a request that is a guess whatever becomes of it. Raises HttpProblem 429."""
    require_pace(services.identity.strangers.take(_peer(request)), _GUESSES)


def require_few_guesses(request: Request, services: Services) -> None:
    """Raises HttpProblem 429."""
    require_pace(services.identity.strangers.wait_s(_peer(request)), _GUESSES)


def require_pace(wait_s: float, what: str) -> None:
    """Raises HttpProblem 429 unless there is nothing to wait for."""
    if wait_s:
        raise HttpProblem("too-many", what, wait_s=wait_s)


def find_bearer(request: Request) -> str | None:
    """The token of the request; None: it has none. Raises Unauthenticated for what is no bearer token."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(WHO)
    return token.strip()


def _peer(request: Request) -> str:
    return "nowhere" if request.client is None else request.client.host
