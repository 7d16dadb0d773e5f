"""Reports of replicas' agents: batches of journal lines up, what is desired down."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from orchestrator.api.deps import Report, Wired
from orchestrator.api.openapi import problems, request_body
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire import ReportAnswer, ReportBody

# Agents and service upgrade apart: here unknown fields and parameters are ignored.
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=RenderingRoute)


@router.post("/reports", responses=problems(404, 413, 415), openapi_extra=request_body(ReportBody))
async def accept_report(services: Wired, body: Report) -> ReportAnswer:
    """Store a report. Sending it again changes nothing."""
    return ReportAnswer(desired=await asyncio.wrap_future(services.intake.receive(body)))
