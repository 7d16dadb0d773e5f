"""Logs as plain text: the last lines, or a stream."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from orchestrator.api.deps import Wired, refuse_unknown_query
from orchestrator.api.openapi import problems
from orchestrator.api.stream import follow as follow_lines
from orchestrator.logfollow import Follower
from orchestrator.logs import MAX_TAIL, LogRequest

MEDIA_TYPE = "text/plain; charset=utf-8"

router = APIRouter(prefix="/api/v1", tags=["logs"], dependencies=[Depends(refuse_unknown_query)])

Number = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


def _request(
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="absent: the newest")] = None,
    replica: Number = None,
    rank: Number = None,
    stream: Literal["worker", "agent"] = "worker",
    tail: Annotated[int, Query(ge=0, le=MAX_TAIL)] = 200,
    grep: Annotated[str | None, Query(max_length=1000, description="plain text that a line holds")] = None,
) -> LogRequest:
    return LogRequest(attempt=attempt, replica=replica, rank=rank, stream=stream, tail=tail, grep=grep)


@router.get("/jobs/{job_id}/logs", response_class=PlainTextResponse, responses=problems(404))
def read_logs(
    services: Wired, job_id: str, wanted: Annotated[LogRequest, Depends(_request)], follow: bool = False
) -> Response:
    """Lines of the job's logs, oldest first. `follow` goes on until the job rests."""
    if follow:
        services.queries.job(job_id)  # an unknown job is an answer of its own, not an empty stream
        lines = follow_lines(Follower(services.logs, job_id, wanted), services.closing)
        return StreamingResponse(lines, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
    return PlainTextResponse("".join(f"{line}\n" for line in services.logs.tail(job_id, wanted)), media_type=MEDIA_TYPE)
