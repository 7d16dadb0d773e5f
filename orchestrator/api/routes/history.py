"""The history of a job: attempts, events, snapshots, workers, nodes, stacks, goodput, explanation, metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from orchestrator.api.deps import Cursor, Limit, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.rendering import RenderingRoute
from orchestrator.wire.answers import Page
from orchestrator.wire.history_views import (
    JobNodeView,
    MetricsView,
    ResourcesView,
    SnapshotView,
    StacksView,
    WorkerView,
)
from orchestrator.wire.insight import GoodputView, WhyView
from orchestrator.wire.job_views import AttemptView, EventView

MOST_POINTS = 500

router = APIRouter(
    prefix="/api/v1/jobs/{job_id}",
    tags=["history"],
    dependencies=[Depends(refuse_unknown_query)],
    responses=problems(404),
    route_class=RenderingRoute,
)


@router.get("/attempts")
def list_attempts(services: Wired, job_id: str, limit: Limit = 50, cursor: Cursor = None) -> Page[AttemptView]:
    """The job's attempts, oldest first."""
    return services.queries.attempts(job_id, limit=limit, cursor=cursor)


@router.get("/events")
def list_events(services: Wired, job_id: str, limit: Limit = 50, cursor: Cursor = None) -> Page[EventView]:
    """The job's events, in the order of their arrival."""
    return services.queries.events(job_id, limit=limit, cursor=cursor)


@router.get("/snapshots")
def list_snapshots(services: Wired, job_id: str, limit: Limit = 50, cursor: Cursor = None) -> Page[SnapshotView]:
    """The job's snapshots, newest step first."""
    return services.queries.snapshots(job_id, limit=limit, cursor=cursor)


@router.get("/workers")
def list_workers(services: Wired, job_id: str, limit: Limit = 50, cursor: Cursor = None) -> Page[WorkerView]:
    """The last report of each worker, newest attempt first."""
    return services.queries.workers(job_id, limit=limit, cursor=cursor)


@router.get("/nodes")
def list_nodes_of_job(services: Wired, job_id: str, limit: Limit = 50, cursor: Cursor = None) -> Page[JobNodeView]:
    """The nodes of the newest attempt: each incarnation of an agent, by replica."""
    return services.queries.nodes(job_id, limit=limit, cursor=cursor)


@router.get("/stacks")
def list_stacks(
    services: Wired, job_id: str, rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None
) -> Page[StacksView]:
    """The last stack of each rank, by rank, of the newest attempt that has stacks."""
    return services.queries.stacks(job_id, rank=rank)


@router.get("/resources")
def show_resources(
    services: Wired,
    job_id: str,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    points: Annotated[int, Query(ge=1, le=MOST_POINTS)] = 200,
) -> ResourcesView:
    """The memory, CPU and GPU use of each rank, over at most `points` equal intervals.

    Without `rank`, series of the 16 ranks that use the most memory."""
    return services.resources.show(job_id, rank=rank, points=points)


@router.get("/goodput")
def show_goodput(services: Wired, job_id: str) -> GoodputView:
    """Where the job's device time went. Each second is in one bin."""
    return services.accounts.goodput(job_id)


@router.get("/why")
def show_why(services: Wired, job_id: str) -> WhyView:
    """Explain the job's state: the first cause, what ended with it, what was done, what was lost, and what helps."""
    return services.accounts.why(job_id)


@router.get("/metrics")
def show_metrics(
    services: Wired,
    job_id: str,
    names: Annotated[str, Query(max_length=2000, description="Names, separated by commas. Default: all.")] = "",
    since_step: Annotated[int, Query(ge=-1, le=2**62)] = -1,
    points: Annotated[int, Query(ge=1, le=5000)] = 500,
) -> MetricsView:
    """Metrics of the steps after `since_step`, thinned evenly to at most `points`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return services.queries.metrics(job_id, names=list(dict.fromkeys(wanted)), since_step=since_step, points=points)
