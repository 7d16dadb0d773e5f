"""Build the application from routes, error handlers and the edge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from orchestrator.api.authorization import authorize
from orchestrator.api.deps import Services
from orchestrator.api.edge import Edge
from orchestrator.api.errors import ProblemPage, install_handlers
from orchestrator.api.openapi import describe
from orchestrator.api.routes import (
    arrays,
    clusters,
    events,
    goodput,
    history,
    job_requests,
    jobs,
    logs,
    meta,
    reports,
    secrets,
    tokens,
    webhooks,
)


def create_app(
    services: Services,
    *,
    pages: Sequence[BaseRoute] = (),
    problem_page: ProblemPage | None = None,
) -> FastAPI:
    """`problem_page` renders an error for a browser. It comes from the dashboard, as the routes of the pages do."""
    app = FastAPI(
        title="Orchestrator",
        description="Submits training jobs to clusters and keeps them alive.",
        version=services.version,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
        routes=[*build_api_routes(), *pages],
    )
    app.state.services = services
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # FastAPI's own way to extend the document
    install_handlers(app, problem_page)
    app.add_middleware(
        Edge,
        metrics=services.metrics,
        allowed_hosts=frozenset(services.hosts),
        instance=services.instance,
        trouble=services.trouble,
        body_memory=services.body_memory,
    )
    return app


@cache
def build_api_routes() -> Sequence[BaseRoute]:
    """Build the routes under /api. They hold no service, so all applications of a process share them."""
    api = APIRouter(
        dependencies=[Depends(authorize)],
        generate_unique_id_function=lambda route: route.name,  # what a generated client calls its methods
    )
    for module in (
        reports,  # first, because most requests are reports, and the routes are tried in turn
        jobs,
        job_requests,
        arrays,
        history,
        goodput,
        events,
        logs,
        clusters,
        tokens,
        secrets,
        webhooks,
        meta,
    ):
        api.include_router(module.router)
    return api.routes
