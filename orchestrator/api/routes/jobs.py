"""Submit, plan, list, show and delete jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from orchestrator.api.authorization import Caller, require_role, require_sight
from orchestrator.api.bodies import SpecBody
from orchestrator.api.deps import Cursor, IdempotencyKey, Limit, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute, render_answer
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.job.job import JobState
from orchestrator.queries.job_queries import view_of_new_job
from orchestrator.store.records import LOOKED_AT, JobFilter, JobOrder
from orchestrator.wire.answers import Page
from orchestrator.wire.job_views import DeletionView, JobView, ListedJobView, SubmittedView
from orchestrator.wire.plans import PlanView

router = APIRouter(
    prefix="/api/v1", tags=["jobs"], dependencies=[Depends(refuse_unknown_query)], route_class=RenderingRoute
)


@router.post(
    "/jobs",
    status_code=201,
    response_model=SubmittedView,
    responses={
        200: {"model": SubmittedView, "description": "The caller sent this key and spec before. The job is the same"},
        **problems(409),
    },
)
def submit_job(services: Wired, caller: Caller, spec: SpecBody, idempotency_key: IdempotencyKey = None) -> Response:
    """Submit a job. A repeated call with the same Idempotency-Key returns the same job. A key belongs to one caller in
    one project."""
    require_role(caller, Role.SUBMITTER, spec.project)
    job, created = services.commands.acting(caller).submit(spec, idempotency_key)
    view = view_of_new_job(job) if created else services.queries.job(job.id)
    answer = SubmittedView(**dict(view), warnings=services.commands.list_warnings(job.spec))
    return render_answer(answer, 201 if created else 200, {"Location": f"/api/v1/jobs/{job.id}"})


@router.post("/plan", responses=problems(404))
def plan_job(
    services: Wired,
    caller: Caller,
    spec: SpecBody,
    against: Annotated[str | None, Query(max_length=128, description="A job to compare the spec with.")] = None,
) -> PlanView:
    """Show what this spec would launch and whether it would start now. Submits nothing."""
    require_role(caller, Role.SUBMITTER, spec.project)
    if against is not None:
        require_sight(services.identity.places, caller, against)
    plan = services.plans.acting(caller).plan(spec, against=against)
    states = {job_id: services.queries.job(job_id).state for job_id in spec.after}
    return plan.model_copy(update={"outlook": services.inventory.outlook(spec, states)})


_SEARCH = (
    f"Text in the id, name or reason. A page looks at {LOOKED_AT:,} jobs. It may have fewer jobs than `limit`, "
    "or none, and still a `next_cursor`."
)


async def _filter(
    caller: Caller,
    state: JobState | None = None,
    project: Annotated[str | None, Query(max_length=63)] = None,
    cluster: Annotated[str | None, Query(max_length=63)] = None,
    label: Annotated[str | None, Query(max_length=400, description="A label, as key=value.")] = None,
    q: Annotated[str | None, Query(max_length=200, description=_SEARCH)] = None,
) -> JobFilter:
    return JobFilter(
        state=state,
        project=project,
        cluster=cluster,
        label=_parse_label(label),
        query=q or None,
        projects=caller.projects(Role.VIEWER),
    )


@router.get("/jobs", response_model=Page[JobView], responses=problems())
def list_jobs(
    services: Wired,
    where: Annotated[JobFilter, Depends(_filter)],
    order: JobOrder = JobOrder.NEWEST,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ListedJobView]:
    """A page of the jobs of the caller's projects, in `order`."""
    return services.queries.jobs(where, limit=limit, cursor=cursor, order=order)


@router.get("/jobs/{job_id}", response_model=JobView, responses=problems(404))
def show_job(services: Wired, job_id: str) -> ListedJobView:
    return services.queries.listed_job(job_id)


@router.delete("/jobs/{job_id}", responses=problems(404, 409))
def delete_job(
    services: Wired, caller: Caller, job_id: str, snapshots: Literal["keep", "delete"] = "keep"
) -> DeletionView:
    """Delete the record of an ended job. With `snapshots=delete`, its folder with snapshots and logs is deleted too."""
    deletion = services.deletions.delete(job_id, files=snapshots == "delete", by=caller)
    return DeletionView.model_validate({**asdict(deletion), "folders": services.deletions.folders(deletion)})


@router.get("/jobs/{job_id}/request", responses=problems(404))
def show_request(services: Wired, job_id: str) -> PlanView:
    """What was launched for the newest attempt, or would be for the first: the commands and the native request."""
    return services.plans.launch(job_id)


def _parse_label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidSpec([FieldProblem("/query/label", f"is {text!r}, must be key=value")])
    return key, value
