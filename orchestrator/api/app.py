"""The application: routes, handlers and the edge, put together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Depends, FastAPI

from orchestrator.api.authorization import authorise
from orchestrator.api.deps import Services
from orchestrator.api.edge import Edge
from orchestrator.api.errors import ProblemPage, install_handlers
from orchestrator.api.openapi import describe
from orchestrator.api.routes import (
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
    services: Services, *, pages: Sequence[APIRouter] = (), problem_page: ProblemPage | None = None
) -> FastAPI:
    """`pages` are routers for people, `problem_page` renders an error for a browser; both come from the dashboard."""
    app = FastAPI(
        title="Orchestrator",
        description="Submits training jobs to clusters and keeps them alive.",
        version=services.version,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # what a generated client calls its methods
        dependencies=[Depends(authorise)],
    )
    app.state.services = services
    for module in (
        jobs,
        job_requests,
        history,
        goodput,
        events,
        logs,
        clusters,
        reports,
        tokens,
        secrets,
        webhooks,
        meta,
    ):
        app.include_router(module.router)
    for router in pages:
        app.include_router(router, include_in_schema=False)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # FastAPI's own way to extend the document
    install_handlers(app, problem_page)
    app.add_middleware(
        Edge,
        metrics=services.metrics,
        allowed_hosts=frozenset(services.hosts),
        body_memory=services.body_memory,
    )
    return app
