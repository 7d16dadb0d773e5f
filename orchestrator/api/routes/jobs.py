"""Jobs: submit, plan, look."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from orchestrator.api.deps import Cursor, IdempotencyKey, Limit, SpecBody, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems, request_body
from orchestrator.api.rendering import RenderingRoute, render_answer
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.job import JobState
from orchestrator.domain.spec import JobSpec
from orchestrator.ports import JobFilter
from orchestrator.queries import view_of_new_job
from orchestrator.wire import JobView, Page, PlanView

router = APIRouter(
    prefix="/api/v1", tags=["jobs"], dependencies=[Depends(refuse_unknown_query)], route_class=RenderingRoute
)


@router.post(
    "/jobs",
    status_code=201,
    response_model=JobView,
    responses={200: {"model": JobView, "description": "The same key and spec before"}, **problems(409, 413, 415)},
    openapi_extra=request_body(JobSpec),
)
def submit_job(services: Wired, spec: SpecBody, idempotency_key: IdempotencyKey = None) -> Response:
    """Submit a job. With an Idempotency-Key the same call again gives the same job."""
    job, created = services.commands.submit(spec, idempotency_key)
    view = view_of_new_job(job) if created else services.queries.job(job.id)
    return render_answer(view, 201 if created else 200, {"Location": f"/api/v1/jobs/{job.id}"})


@router.post("/plan", responses=problems(413, 415), openapi_extra=request_body(JobSpec))
def plan_job(services: Wired, spec: SpecBody) -> PlanView:
    """The dry run: what a submission of this spec would start. Submits nothing."""
    return services.commands.plan(spec)


def _filter(
    state: JobState | None = None,
    project: Annotated[str | None, Query(max_length=63)] = None,
    cluster: Annotated[str | None, Query(max_length=63)] = None,
    label: Annotated[str | None, Query(max_length=400, description="key=value")] = None,
    q: Annotated[str | None, Query(max_length=200, description="text in id, name or reason")] = None,
) -> JobFilter:
    return JobFilter(state=state, project=project, cluster=cluster, label=_parse_label(label), query=q or None)


@router.get("/jobs", responses=problems())
def list_jobs(
    services: Wired,
    where: Annotated[JobFilter, Depends(_filter)],
    order: Literal["newest", "oldest"] = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[JobView]:
    """A page of jobs by the time of their submission."""
    return services.queries.jobs(where, limit=limit, cursor=cursor, newest_first=order == "newest")


@router.get("/jobs/{job_id}", responses=problems(404))
def show_job(services: Wired, job_id: str) -> JobView:
    return services.queries.job(job_id)


def _parse_label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidSpec([FieldProblem("/query/label", f"is {text!r}, must be key=value")])
    return key, value
