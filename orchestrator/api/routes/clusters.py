"""Clusters, nodes with recorded failures, and projects with their quotas and use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from orchestrator.api.authorization import Caller
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.domain.access.identity import Role
from orchestrator.wire.answers import Page
from orchestrator.wire.cluster_views import ClusterView, NodeView, ProjectView

router = APIRouter(
    prefix="/api/v1",
    tags=["clusters"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(),
    route_class=RenderingRoute,
)


@router.get("/clusters")
def list_clusters(services: Wired) -> Page[ClusterView]:
    """Every configured cluster: its slots, its jobs by state, and its supervisor."""
    return Page(items=services.inventory.clusters())


@router.get("/nodes")
def list_nodes(
    services: Wired, caller: Caller, cluster: Annotated[str | None, Query(max_length=63)] = None
) -> Page[NodeView]:
    """Nodes with recorded failures, and until when new attempts avoid them."""
    nodes = services.inventory.nodes(cluster)
    return Page(items=nodes if caller.may_everywhere(Role.VIEWER) else [_without_jobs(node) for node in nodes])


@router.post("/nodes/{cluster}/{node}/clear", status_code=204, responses=problems(404))
def clear_node(services: Wired, caller: Caller, cluster: str, node: str) -> Response:
    """Clear the record of a node, so that attempts may use it again. Idempotent."""
    services.nodes.clear(cluster, node, by=caller)
    return Response(status_code=204)


@router.get("/projects")
def list_projects(services: Wired, caller: Caller) -> Page[ProjectView]:
    """Quotas and use of the projects that have a quota, or jobs that are not at rest."""
    mine = caller.projects(Role.VIEWER)
    return Page(items=[each for each in services.inventory.projects() if mine is None or each.name in mine])


def _without_jobs(node: NodeView) -> NodeView:
    """The node without the last failed job and its message, for callers who may not view every project."""
    return node.model_copy(update={"last_job": "", "last_sentence": ""})
