"""Reports of replicas' agents: batches of journal lines up, what is desired down."""

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

# Agents and service upgrade apart: here unknown fields and parameters are ignored.
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=RenderingRoute)


@router.post("/reports", responses=problems(404))
async def accept_report(request: Request, services: Wired, body: Report) -> ReportAnswer:
    """Store a report. Sending it again changes nothing. Nothing is stored for an attempt that has ended."""
    require_same_attempt(request, services, AttemptKey(body.job_id, body.attempt))
    return ReportAnswer(desired=await asyncio.wrap_future(services.intake.receive(body)))
