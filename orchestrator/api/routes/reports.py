"""Reports of agents: an agent sends journal lines and receives the desired state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response

from orchestrator.api.agents import require_same_attempt
from orchestrator.api.authorization import authorize
from orchestrator.api.bodies import REPORT, Report
from orchestrator.api.deps import Wired, get_services
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.wire.reports import ReportAnswer


class _ReportRoute(RenderingRoute):
    """Call the handler without FastAPI's search for its arguments: most requests are reports.

    The handler's signature is for the OpenAPI document.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def answer(request: Request) -> Response:
            await authorize(request)
            services = await get_services(request)
            answered: Response = await self.endpoint(request, services, await REPORT.read(request))
            return answered

        return answer


# Agents and the service are upgraded separately, so unknown fields and parameters are ignored here.
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=_ReportRoute)


@router.post("/reports", responses=problems(404))
async def accept_report(request: Request, services: Wired, body: Report) -> ReportAnswer:
    """Store a report. Idempotent. An agent whose attempt has ended is told to stop."""
    require_same_attempt(request, services, AttemptKey(body.job_id, body.attempt))
    return ReportAnswer(desired=await asyncio.wrap_future(services.intake.receive(body)))
