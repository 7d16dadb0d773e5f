"""What there is to run on: clusters, nodes with a record, projects and what they use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire import ClusterView, NodeView, Page, ProjectView

router = APIRouter(
    prefix="/api/v1",
    tags=["clusters"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(),
    route_class=RenderingRoute,
)


@router.get("/clusters")
def list_clusters(services: Wired) -> Page[ClusterView]:
    """Every configured cluster: its slots, its jobs by state, and who supervises it."""
    return Page(items=services.inventory.clusters())


@router.get("/nodes")
def list_nodes(services: Wired, cluster: Annotated[str | None, Query(max_length=63)] = None) -> Page[NodeView]:
    """Nodes with failures in their record, and until when new attempts avoid them."""
    return Page(items=services.inventory.nodes(cluster))


@router.get("/projects")
def list_projects(services: Wired) -> Page[ProjectView]:
    """Quotas and use of the projects that have a quota, or jobs that are not at rest."""
    return Page(items=services.inventory.projects())
