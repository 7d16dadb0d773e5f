"""Reports of replicas' agents: batches of journal lines up, what is desired down."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import require_worker
from orchestrator.api.bodies import Report
from orchestrator.api.deps import Wired
from orchestrator.api.errors import MEDIA_TYPE, build_problem
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import AttemptOver
from orchestrator.wire.reports import DesiredView, ReportAnswer, ReportRefusal

# Agents and service upgrade apart: here unknown fields and parameters are ignored.
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=RenderingRoute)


@router.post("/reports", response_model=ReportAnswer, responses=problems(404))
async def accept_report(request: Request, services: Wired, body: Report) -> ReportAnswer | Response:
    """Store a report. Sending it again changes nothing. Nothing is stored for an attempt that has ended."""
    try:
        await require_worker(request, services, AttemptKey(body.job_id, body.attempt))
    except AttemptOver as error:
        return _tell_to_stop(error)
    return ReportAnswer(desired=await asyncio.wrap_future(services.intake.receive(body)))


def _tell_to_stop(error: AttemptOver) -> Response:
    """Refused, and yet told what is wished: an agent that was cut off for an hour has to hear that it is over."""
    problem = build_problem("forbidden", str(error))
    refusal = ReportRefusal(**vars(problem), desired=DesiredView(state="stop"))
    return Response(refusal.model_dump_json(), problem.status, media_type=MEDIA_TYPE)
