"""The service itself: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog
from fastapi import APIRouter, Response

from orchestrator.api.authorization import Caller
from orchestrator.api.deps import Services, Wired
from orchestrator.api.errors import build_problem, respond
from orchestrator.api.openapi import problems
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job.job import JobState
from orchestrator.telemetry.metrics import CONTENT_TYPE, Levels
from orchestrator.wire.service import Health

router = APIRouter(tags=["service"])

_log = structlog.get_logger(__name__)


@router.get("/healthz")
def show_health(services: Wired) -> Health:
    """The process answers."""
    return Health(status="ok", version=services.version)


@router.get("/readyz", response_model=Health, responses=problems())
def show_readiness(services: Wired) -> Health | Response:
    """The service can do its work: the store answers and the supervisor makes passes."""
    ready, detail = services.ready()
    if not ready:
        return respond(build_problem("unavailable", detail))
    if services.trouble() is not None:
        detail = f"the database cannot be written; {detail}"
    return Health(status="ready", version=services.version, detail=detail)


_NUMBERS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses={**problems(), **_NUMBERS})
def show_numbers(services: Wired, caller: Caller) -> Response:
    """Metrics in Prometheus' text format. Metrics by project cover the projects that the caller may see."""
    levels = _levels(services, caller.projects(Role.VIEWER))
    return Response(services.metrics.render(levels), media_type=CONTENT_TYPE)


def _levels(services: Services, projects: Collection[str] | None) -> Levels | None:
    try:
        counted, ages = services.queries.count_by_state(), services.inventory.ages()
        device_s = services.usage.last_day(projects)
    except StoreUnavailable as error:
        _log.warning("metrics of jobs are missing", reason=str(error))
        return None
    return Levels(
        jobs_by_state={state.value: counted.get(state, 0) for state in JobState},
        oldest_queued_s={age.cluster: age.queued_s for age in ages if age.queued_s is not None},
        oldest_snapshot_s={age.cluster: age.snapshot_s for age in ages if age.snapshot_s is not None},
        device_s=device_s,
    )
