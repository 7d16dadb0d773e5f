"""Where the device time of many jobs went, by user, project, cluster, job, node or cause."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from orchestrator.api.authorization import Caller
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.domain.access.identity import Role
from orchestrator.domain.accounting.breakdown import Grouping
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.queries.usage import visible
from orchestrator.wire.insight import SharesView
from orchestrator.wire.moments import Moment

router = APIRouter(
    prefix="/api/v1",
    tags=["goodput"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(),
    route_class=RenderingRoute,
)


@router.get("/goodput")
def share_goodput(
    services: Wired,
    caller: Caller,
    by: Annotated[Grouping, Query()] = Grouping.PROJECT,
    project: Annotated[str | None, Query(max_length=63)] = None,
    since: Annotated[Moment | None, Query(description="Default: 30 days before `until`.")] = None,
    until: Annotated[Moment | None, Query(description="Default: now.")] = None,
) -> SharesView:
    """Where the device time of the caller's projects went between two times, the largest share first."""
    if since is not None and until is not None and since >= until:
        raise InvalidSpec([FieldProblem("/query/since", "must be before until")])
    projects = visible(caller.projects(Role.VIEWER), project)
    return services.usage.shares(by, since=since, until=until, projects=projects)
