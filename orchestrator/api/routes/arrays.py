"""Submit, show, cancel and retry arrays."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from orchestrator.api.array_requests import request_members
from orchestrator.api.authorization import Caller, require_role
from orchestrator.api.bodies import ArrayBody
from orchestrator.api.deps import IdempotencyKey, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute, render_answer
from orchestrator.domain.access.identity import Role
from orchestrator.domain.specs.spec import ARRAY_LABEL
from orchestrator.queries.arrays import find_array
from orchestrator.wire.array_views import ArrayView

router = APIRouter(
    prefix="/api/v1/arrays", tags=["arrays"], dependencies=[Depends(refuse_unknown_query)], route_class=RenderingRoute
)


@router.post(
    "",
    status_code=201,
    response_model=ArrayView,
    responses={
        200: {"model": ArrayView, "description": "The caller sent this key and spec before. The array is the same"},
        **problems(409),
    },
)
def submit_array(services: Wired, caller: Caller, spec: ArrayBody, idempotency_key: IdempotencyKey = None) -> Response:
    """Submit one job for each member of a sweep. None is submitted unless all are accepted."""
    require_role(caller, Role.SUBMITTER, spec.project)
    jobs, created = services.commands.acting(caller).submit_array(spec, idempotency_key)
    array_id = jobs[0].spec.labels[ARRAY_LABEL]
    found = find_array(services.queries, array_id, caller.projects(Role.VIEWER))
    warnings = dict.fromkeys(each for job in jobs for each in services.commands.list_warnings(job.spec))
    answer = found.model_copy(update={"warnings": list(warnings)})
    return render_answer(answer, 201 if created else 200, {"Location": f"/api/v1/arrays/{array_id}"})


@router.get("/{array_id}", responses=problems(404))
def show_array(services: Wired, caller: Caller, array_id: str) -> ArrayView:
    """An array and its members."""
    return find_array(services.queries, array_id, caller.projects(Role.VIEWER))


@router.post("/{array_id}/cancel", status_code=202, responses=problems(404))
def cancel_array(services: Wired, caller: Caller, array_id: str) -> ArrayView:
    """Cancel the members that have not ended."""
    return request_members(services, caller, array_id, "cancel")


@router.post("/{array_id}/retry", status_code=202, responses=problems(404))
def retry_array(services: Wired, caller: Caller, array_id: str) -> ArrayView:
    """Retry the members that failed."""
    return request_members(services, caller, array_id, "retry")
