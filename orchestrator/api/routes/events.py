"""Streams of Server-Sent Events (html.spec.whatwg.org). An event names the job that changed; a client then reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from orchestrator.api.authorization import Caller, watch_access
from orchestrator.api.deps import Services, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.stream import Stream, stream_changes
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.field_rules import EVENT_ID
from orchestrator.store.records import EventNotice
from orchestrator.wire.job_views import JobChange

MEDIA_TYPE = "text/event-stream"

router = APIRouter(prefix="/api/v1", tags=["events"], dependencies=[Depends(refuse_unknown_query)])

LastEventId = Annotated[
    str | None, Header(pattern=EVENT_ID, description="The id of the last received event: continue after it.")
]
# `event` and `data` come together. A block without them is no event, and only moves the id (WHATWG HTML, 9.2.6).
_BLOCK: dict[str, Any] = {
    "type": "object",
    "description": "A block of the stream. One without `data` is not an event; its `id` says from where to reconnect.",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]{1,18}$", "description": "The value for `Last-Event-ID`."},
        "event": {"type": "string", "enum": ["job"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": JobChange.model_json_schema(),
        },
        "retry": {"type": "integer", "minimum": 0, "description": "Milliseconds to wait before reconnecting."},
    },
    "dependentRequired": {"event": ["data"], "data": ["event"]},
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream of changes",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "itemSchema": _BLOCK}},
    }
}


@router.get("/events", response_class=StreamingResponse, responses={**problems(), **_STREAM})
async def stream_events(
    request: Request, services: Wired, caller: Caller, last_event_id: LastEventId = None
) -> Response:
    """`{"job_id", "kind"}` for each event of the caller's projects, from now on or after `Last-Event-ID`."""
    mine = caller.projects(Role.VIEWER)
    return await _stream(request, services, caller, last_event_id, lambda event: mine is None or event.project in mine)


@router.get("/jobs/{job_id}/events/stream", response_class=StreamingResponse, responses={**problems(404), **_STREAM})
async def stream_events_of_job(
    request: Request, services: Wired, caller: Caller, job_id: str, last_event_id: LastEventId = None
) -> Response:
    """`{"job_id", "kind"}` for each event of one job, from now on or after `Last-Event-ID`."""
    await run_in_threadpool(services.queries.job, job_id)  # an unknown job gets 404, not an empty stream
    return await _stream(request, services, caller, last_event_id, lambda event: event.job_id == job_id)


async def _stream(
    request: Request,
    services: Services,
    caller: Principal,
    last_event_id: str | None,
    wanted: Callable[[EventNotice], bool],
) -> Response:
    begin = int(last_event_id) if last_event_id is not None else await run_in_threadpool(services.tail.newest)
    changes = stream_changes(services.tail, begin, wanted, watch_access(request, services.closing))
    return Stream(changes, media_type=MEDIA_TYPE, caller=caller.name, stream_limit=services.identity.stream_limit)
