"""Pages for people: the list of jobs, the page of one job, and the clusters. Reads by queries, wishes by commands.

No script is inline and nothing comes from elsewhere, so that the strict Content-Security-Policy holds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.commands import Commands
from orchestrator.dashboard.curve import build_curve
from orchestrator.dashboard.pages import ASSETS, render_page
from orchestrator.domain.errors import NotFound
from orchestrator.domain.job import Job, JobState
from orchestrator.inventory import Inventory
from orchestrator.logs import LogRequest, Logs
from orchestrator.ports import Clock, JobFilter
from orchestrator.queries import Queries
from orchestrator.wire import RetryRequest

JOBS_SHOWN = 50
EVENTS_SHOWN = 50
LOG_LINES_SHOWN = 120
QUEUED_SHOWN = 100
CURVE_POINTS = 380

Fragment = Annotated[str | None, Header(alias="X-Fragment")]


def build_router(queries: Queries, inventory: Inventory, commands: Commands, logs: Logs, clock: Clock) -> APIRouter:
    """The routes of the pages. With the header `X-Fragment: main` a page is its <main>'s content only."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", _job_list(queries, clock.now), methods=["GET"])
    router.add_api_route("/jobs/{job_id}", _job_page(queries, logs, clock.now), methods=["GET"])
    router.add_api_route("/clusters", _clusters_page(inventory, clock.now), methods=["GET"])
    router.add_api_route("/static/{name}", _asset, methods=["GET"])
    wishes: dict[str, Callable[[str], Job]] = {
        "cancel": commands.cancel,
        "suspend": commands.suspend,
        "resume": commands.resume,
        "snapshot": commands.snapshot,
        "retry": lambda job_id: commands.retry(job_id, RetryRequest()),
    }
    for verb, wish in wishes.items():
        router.add_api_route(f"/jobs/{{job_id}}/{verb}", _wishing(wish), methods=["POST"])
    return router


def _wishing(wish: Callable[[str], Job]) -> Callable[..., Response]:
    def post(job_id: str) -> Response:
        return RedirectResponse(f"/jobs/{wish(job_id).id}", status_code=303)

    return post


def _job_list(queries: Queries, now: Callable[[], datetime]) -> Callable[..., Response]:
    def show(
        state: JobState | None = None,
        project: Annotated[str | None, Query(max_length=63)] = None,
        q: Annotated[str, Query(max_length=200)] = "",
        cursor: Annotated[str | None, Query(max_length=512)] = None,
        fragment: Fragment = None,
    ) -> Response:
        where = JobFilter(state=state, project=project or None, query=q or None)
        counts = queries.count_by_state()
        return _page(
            "jobs.html",
            fragment,
            now=now(),
            page=queries.jobs(where, limit=JOBS_SHOWN, cursor=cursor),
            counts={known.value: counts.get(known, 0) for known in JobState if counts.get(known)},
            total=sum(counts.values()),
            state=state,
            project=project or "",
            query=q,
            cursor=cursor,
        )

    return show


def _job_page(queries: Queries, logs: Logs, now: Callable[[], datetime]) -> Callable[..., Response]:
    def show(job_id: str, fragment: Fragment = None) -> Response:
        job = queries.job(job_id)
        metrics = queries.metrics(job_id, names=["loss"], since_step=-1, points=CURVE_POINTS)
        workers = queries.workers(job_id, limit=200, cursor=None)
        return _page(
            "job.html",
            fragment,
            now=now(),
            job=job,
            curve=build_curve(metrics),
            attempts=list(reversed(queries.attempts(job_id, limit=200, cursor=None).items)),
            workers=[worker for worker in workers.items if worker.attempt == job.attempt],
            snapshots=queries.snapshots(job_id, limit=8, cursor=None).items,
            events=queries.events(job_id, limit=EVENTS_SHOWN, cursor=None, newest_first=True).items,
            log=_log_tail(logs, job_id),
        )

    return show


def _clusters_page(inventory: Inventory, now: Callable[[], datetime]) -> Callable[..., Response]:
    def show(fragment: Fragment = None) -> Response:
        clusters = inventory.clusters()
        return _page(
            "clusters.html",
            fragment,
            now=now(),
            clusters=clusters,
            queues={cluster.name: inventory.queue(cluster.name, limit=QUEUED_SHOWN) for cluster in clusters},
            nodes=inventory.nodes(),
            projects=inventory.projects(),
        )

    return show


def _asset(name: str) -> Response:
    if name not in ASSETS:
        raise NotFound(f"there is no file {name}")
    asset = ASSETS[name]
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}  # its address changes with its content
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def _page(template: str, fragment: str | None, **values: object) -> Response:
    content = render_page(template, fragment=fragment == "main", **values)
    return HTMLResponse(content, headers={"Vary": "X-Fragment"})


def _log_tail(logs: Logs, job_id: str) -> list[str]:
    try:
        return logs.tail(job_id, LogRequest(tail=LOG_LINES_SHOWN))
    except NotFound as error:
        return [str(error)]
