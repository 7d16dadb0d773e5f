"""About the service itself: alive, ready, in numbers."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Response

from orchestrator.api.deps import Services, Wired
from orchestrator.api.errors import build_problem, respond
from orchestrator.api.openapi import problems
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job import JobState
from orchestrator.telemetry import CONTENT_TYPE
from orchestrator.wire import Health

router = APIRouter(tags=["service"])

_log = structlog.get_logger(__name__)


@router.get("/healthz")
def show_health(services: Wired) -> Health:
    """The process answers."""
    return Health(status="ok", version=services.version)


@router.get("/readyz", response_model=Health, responses=problems())
def show_readiness(services: Wired) -> Health | Response:
    """Whether it can do its work: the store answers and the supervisor makes passes."""
    ready, detail = services.ready()
    if not ready:
        return respond(build_problem("unavailable", detail))
    return Health(status="ready", version=services.version, detail=detail)


@router.get("/metrics", response_class=Response)
def show_numbers(services: Wired) -> Response:
    """Prometheus text."""
    return Response(services.metrics.render(_count_jobs(services)), media_type=CONTENT_TYPE)


def _count_jobs(services: Services) -> dict[str, int] | None:
    try:
        counted = services.queries.count_by_state()
    except StoreUnavailable as error:
        _log.warning("no number of jobs", reason=str(error))
        return None
    return {state.value: counted.get(state, 0) for state in JobState}
