"""Requests to a job. Each is recorded and answered with the job. Repeating a request changes nothing."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from orchestrator.api.authorization import Caller
from orchestrator.api.bodies import ChaosBody, RetryBody, ScaleBody, StacksBody
from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire.job_views import JobView

router = APIRouter(
    prefix="/api/v1/jobs/{job_id}",
    tags=["wishes"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(404, 409),
    route_class=RenderingRoute,
)


@router.post("/cancel", status_code=202)
def cancel_job(services: Wired, caller: Caller, job_id: str) -> JobView:
    """Cancel a job."""
    return services.queries.job(services.commands.acting(caller).cancel(job_id).id)


@router.post("/suspend", status_code=202)
def suspend_job(services: Wired, caller: Caller, job_id: str) -> JobView:
    """Take a snapshot and stop the job. It uses no slots until it is resumed."""
    return services.queries.job(services.commands.acting(caller).suspend(job_id).id)


@router.post("/resume", status_code=202)
def resume_job(services: Wired, caller: Caller, job_id: str) -> JobView:
    """Resume a suspended job. It returns to the queue and continues from its newest snapshot."""
    return services.queries.job(services.commands.acting(caller).resume(job_id).id)


@router.post("/snapshot", status_code=202)
def take_snapshot(services: Wired, caller: Caller, job_id: str) -> JobView:
    """Take a snapshot of a running job. Training continues."""
    return services.queries.job(services.commands.acting(caller).snapshot(job_id).id)


@router.post("/stacks", status_code=202)
def take_stacks(services: Wired, caller: Caller, job_id: str, request: StacksBody) -> JobView:
    """Request the Python stacks of a running job's ranks. Training continues. Read the stacks with GET."""
    return services.queries.job(services.commands.acting(caller).stacks(job_id, request).id)


@router.post("/chaos", status_code=202)
def inject_fault(services: Wired, caller: Caller, job_id: str, request: ChaosBody) -> JobView:
    """Inject a fault into a running job, at most once."""
    return services.queries.job(services.commands.acting(caller).chaos(job_id, request).id)


@router.post("/scale", status_code=202)
def scale_job(services: Wired, caller: Caller, job_id: str, request: ScaleBody) -> JobView:
    """Change the number of nodes. The job continues with them from a snapshot, once they are free."""
    return services.queries.job(services.commands.acting(caller).scale(job_id, str(request.nodes)).id)


@router.post("/retry", status_code=202)
def retry_job(services: Wired, caller: Caller, job_id: str, request: RetryBody) -> JobView:
    """Start another attempt of a running, suspended or ended job."""
    return services.queries.job(services.commands.acting(caller).retry(job_id, request).id)
