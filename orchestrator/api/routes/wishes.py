"""What may be wished of a job. Each wish is recorded and answered with the job; repeating one changes nothing."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from orchestrator.api.deps import RetryBody, ScaleBody, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems, request_body
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire import JobView, RetryRequest, ScaleRequest

router = APIRouter(
    prefix="/api/v1/jobs/{job_id}",
    tags=["wishes"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(404, 409),
    route_class=RenderingRoute,
)


@router.post("/cancel", status_code=202)
def cancel_job(services: Wired, job_id: str) -> JobView:
    """Wish the end of a job."""
    return services.queries.job(services.commands.cancel(job_id).id)


@router.post("/suspend", status_code=202)
def suspend_job(services: Wired, job_id: str) -> JobView:
    """Wish that a job stops at a snapshot and gives its place free until it is resumed."""
    return services.queries.job(services.commands.suspend(job_id).id)


@router.post("/resume", status_code=202)
def resume_job(services: Wired, job_id: str) -> JobView:
    """Withdraw the suspension: the job goes back into the queue and on from its newest snapshot."""
    return services.queries.job(services.commands.resume(job_id).id)


@router.post("/snapshot", status_code=202)
def take_snapshot(services: Wired, job_id: str) -> JobView:
    """Wish one more snapshot of the running attempt, which goes on."""
    return services.queries.job(services.commands.snapshot(job_id).id)


@router.post(
    "/scale", status_code=202, responses=problems(404, 409, 413, 415), openapi_extra=request_body(ScaleRequest)
)
def scale_job(services: Wired, job_id: str, request: ScaleBody) -> JobView:
    """Wish another number of nodes: the job goes on with them from a snapshot, once they fit."""
    return services.queries.job(services.commands.scale(job_id, str(request.nodes)).id)


@router.post(
    "/retry",
    status_code=202,
    responses=problems(404, 409, 413, 415),
    openapi_extra=request_body(RetryRequest, required=False),
)
def retry_job(services: Wired, job_id: str, request: RetryBody) -> JobView:
    """Wish one more attempt of a running, suspended or ended job."""
    return services.queries.job(services.commands.retry(job_id, request).id)
