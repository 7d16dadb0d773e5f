"""Reports of agents: an agent sends journal lines and receives the desired state."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from orchestrator.api.agents import require_same_attempt
from orchestrator.api.bodies import Report
from orchestrator.api.deps import Wired
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.wire.reports import ReportAnswer

# Agents and the service are upgraded separately, so unknown fields and parameters are ignored here.
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=RenderingRoute)


@router.post("/reports", responses=problems(404))
async def accept_report(request: Request, services: Wired, body: Report) -> ReportAnswer:
    """Store a report. Idempotent. A report of an ended attempt is not stored."""
    require_same_attempt(request, services, AttemptKey(body.job_id, body.attempt))
    return ReportAnswer(desired=await asyncio.wrap_future(services.intake.receive(body)))
