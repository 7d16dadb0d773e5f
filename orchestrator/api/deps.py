"""Dependencies of the routes: the services behind them, and a check that refuses unknown query parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from orchestrator.api.body_memory import BodyMemory
from orchestrator.commands.deletions import Deletions
from orchestrator.commands.job_commands import Commands
from orchestrator.commands.nodes import NodeRecords
from orchestrator.commands.plans import Plans
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.field_rules import IDEMPOTENCY_KEY
from orchestrator.identity.gate import Gate
from orchestrator.identity.job_places import JobPlaces
from orchestrator.identity.rate_limit import RateLimit
from orchestrator.identity.stream_limit import StreamLimit
from orchestrator.identity.tokens import Tokens
from orchestrator.identity.vault import Vault
from orchestrator.identity.workers import Workers
from orchestrator.intake.reception import Reception
from orchestrator.logs.feed import Feeds
from orchestrator.logs.reader import Logs
from orchestrator.queries.accounts import Accounts
from orchestrator.queries.inventory import Inventory
from orchestrator.queries.job_queries import Queries
from orchestrator.queries.job_resources import Resources
from orchestrator.queries.tail import Tail
from orchestrator.queries.usage import Usage
from orchestrator.telemetry.metrics import Metrics
from orchestrator.webhooks.hooks import Hooks
from orchestrator.wire.webhook_views import WebhookView

_LOG_READERS = 2  # each reads for seconds, and may hold several copies of an answer of 16 MiB


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The parts that authenticate callers, limit them, and keep secrets."""

    gate: Gate
    tokens: Tokens
    places: JobPlaces
    workers: Workers
    vault: Vault
    rate_limit: RateLimit  # by caller
    stream_limit: StreamLimit  # by caller
    guess_limit: RateLimit  # by address, of requests with invalid tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the API uses. `closing` returns True, and streams end, when the process is asked to stop."""

    commands: Commands
    plans: Plans
    deletions: Deletions
    nodes: NodeRecords
    queries: Queries
    accounts: Accounts
    resources: Resources
    usage: Usage
    inventory: Inventory
    identity: Identity
    intake: Reception
    hooks: Hooks
    logs: Logs
    feeds: Feeds
    tail: Tail
    metrics: Metrics
    ready: Callable[[], tuple[bool, str]]
    version: str
    trouble: Callable[[], str | None]  # returns a sentence on what the service cannot do now
    instance: str  # what clients of this run directory expect; see wire/service.py
    body_memory: BodyMemory = field(default_factory=BodyMemory)
    webhooks: Sequence[WebhookView] = ()
    hosts: tuple[str, ...] = ()  # allowed host names besides the loopback ones, without a port
    closing: Callable[[], bool] = _never
    log_readers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_LOG_READERS))  # at one time

    def list_webhooks(self) -> list[WebhookView]:
        """Return the webhooks of the settings and those created by request, by name. Raises StoreUnavailable."""
        return sorted([*self.webhooks, *self.hooks.views()], key=lambda hook: hook.name)


async def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Wired = Annotated[Services, Depends(get_services)]


async def refuse_unknown_query(request: Request) -> None:
    """Raises InvalidSpec for an unknown parameter, so that a misspelled filter does not count as no filter."""
    if not request.query_params:
        return
    route = request.scope.get("route")
    known = _query_names(route.dependant) if isinstance(route, APIRoute) else set()
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        hint = f"known: {', '.join(sorted(known))}" if known else "this route has none"
        raise InvalidSpec([FieldProblem(f"/query/{name}", f"is not a known parameter; {hint}") for name in unknown])


def _query_names(dependant: Dependant) -> set[str]:
    names = {parameter.alias for parameter in dependant.query_params}
    return names.union(*(_query_names(below) for below in dependant.dependencies))


IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255, pattern=IDEMPOTENCY_KEY)]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=512)]
