"""Logs as plain text: the last lines, all lines, or a stream that follows them."""

from __future__ import annotations

from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from orchestrator.api.authorization import Caller, watch_access
from orchestrator.api.deps import Services, Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.stream import Stream, stream_lines, stream_pieces
from orchestrator.logs.reader import MAX_TAIL, LogRequest
from orchestrator.logs.whole import read_whole
from orchestrator.wire.moments import Moment

MEDIA_TYPE = "text/plain; charset=utf-8"

router = APIRouter(prefix="/api/v1", tags=["logs"], dependencies=[Depends(refuse_unknown_query)])

Number = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


def _request(
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Default: the newest.")] = None,
    replica: Number = None,
    rank: Number = None,
    stream: Literal["worker", "agent", "stacks"] = "worker",
    tail: Annotated[int, Query(ge=0, le=MAX_TAIL)] = 200,
    grep: Annotated[str | None, Query(max_length=1000, description="Only lines that contain this text.")] = None,
    since: Annotated[Moment | None, Query(description="Only logs that were written to since this time.")] = None,
    whole: Annotated[bool, Query(description="All lines; `tail` has no effect.")] = False,
) -> LogRequest:
    return LogRequest(
        attempt=attempt,
        replica=replica,
        rank=rank,
        stream=stream,
        tail=tail,
        grep=grep,
        since=since,
        whole=whole,
    )


@router.get("/jobs/{job_id}/logs", response_class=PlainTextResponse, responses=problems(404))
async def read_logs(
    request: Request,
    services: Wired,
    caller: Caller,
    job_id: str,
    wanted: Annotated[LogRequest, Depends(_request)],
    follow: bool = False,
) -> Response:
    """The last lines of a job's logs, oldest first. With `whole`, all of them. With `follow`, also new ones until the
    job ends."""
    if follow or wanted.whole:
        await run_in_threadpool(services.queries.job, job_id)  # an unknown job gets 404, not an empty stream
        may_continue = watch_access(request, services.closing)
        if follow:
            lines = stream_lines(services.feeds.listen(job_id, wanted), may_continue)
        else:
            selection = await to_thread.run_sync(services.logs.select, job_id, wanted, limiter=services.log_readers)
            pieces = iter(()) if selection is None else read_whole(selection, wanted)
            lines = stream_pieces(pieces, services.log_readers, may_continue)
        return Stream(lines, media_type=MEDIA_TYPE, caller=caller.name, stream_limit=services.identity.stream_limit)
    text = await to_thread.run_sync(_read, services, job_id, wanted, limiter=services.log_readers)
    return PlainTextResponse(text, media_type=MEDIA_TYPE)


def _read(services: Services, job_id: str, wanted: LogRequest) -> bytes:
    return "".join(f"{line}\n" for line in services.logs.tail(job_id, wanted)).encode(errors="replace")
