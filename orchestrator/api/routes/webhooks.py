"""Create, list and remove webhooks, which a job's `notify` may name. Changes need a role in every project."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from orchestrator.api.authorization import Caller
from orchestrator.api.bodies import WebhookBody
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire.answers import Page
from orchestrator.wire.webhook_views import NewWebhookView, WebhookView

router = APIRouter(
    prefix="/api/v1",
    tags=["webhooks"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(),
    route_class=RenderingRoute,
)


@router.get("/webhooks")
def list_webhooks(services: Wired) -> Page[WebhookView]:
    """The webhooks of the settings and those created by request, by name."""
    return Page(items=services.list_webhooks())


@router.post("/webhooks", status_code=201, responses=problems(409))
def create_webhook(services: Wired, caller: Caller, request: WebhookBody) -> NewWebhookView:
    """Create a webhook. Only this answer shows its signing secret."""
    return services.hooks.create(request, by=caller)


@router.delete("/webhooks/{webhook}", status_code=204, responses=problems(404, 409))
def remove_webhook(services: Wired, caller: Caller, webhook: str) -> Response:
    """Remove a webhook that was created by request. Undelivered messages are dropped. Jobs that name it continue."""
    services.hooks.remove(webhook, by=caller)
    return Response(status_code=204)
