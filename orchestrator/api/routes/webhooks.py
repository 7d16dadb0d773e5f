"""Which webhooks a job's `notify` may name."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire import Page, WebhookView

router = APIRouter(
    prefix="/api/v1",
    tags=["webhooks"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(),
    route_class=RenderingRoute,
)


@router.get("/webhooks")
def list_webhooks(services: Wired) -> Page[WebhookView]:
    """The configured webhooks, by name."""
    return Page(items=list(services.webhooks))
