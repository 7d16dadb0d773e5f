"""Which webhooks a job's `notify` may name; made and removed by who may do so everywhere."""

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
    """The webhooks of the settings, and those that were made by request, by name."""
    return Page(items=sorted([*services.webhooks, *services.hooks.views()], key=lambda hook: hook.name))


@router.post("/webhooks", status_code=201, responses=problems(409))
def create_webhook(services: Wired, caller: Caller, request: WebhookBody) -> NewWebhookView:
    """Make a webhook, which jobs may name from now on. The secret that signs is shown this once."""
    return services.hooks.create(request, by=caller)


@router.delete("/webhooks/{webhook}", status_code=204, responses=problems(404, 409))
def remove_webhook(services: Wired, caller: Caller, webhook: str) -> Response:
    """Remove a webhook that was made by request. What it was owed is given up; jobs that name it go on."""
    services.hooks.remove(webhook, by=caller)
    return Response(status_code=204)
