"""Streams: answers without an end. A waiting stream holds no thread. Each counts against its caller's stream limit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from anyio import CapacityLimiter, to_thread
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from orchestrator.api.errors import RETRY_AFTER_S, HttpProblem
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.identity.stream_limit import StreamLimit
from orchestrator.logs.feed import EVERY_S, Listener
from orchestrator.queries.tail import Tail
from orchestrator.store.records import EventNotice
from orchestrator.wire.job_views import JobChange

_POLL_S = 0.25
_HEARTBEAT_S = 15.0  # proxies close a connection that is silent for a minute
_LONGEST_S = 600.0  # the longest stream; the browser then reconnects and is authenticated again

MayContinue = Callable[[], Awaitable[bool]]  # returns whether the caller may still read the stream


class Stream(StreamingResponse):
    """A stream that counts against its caller's limit. Sending it raises HttpProblem 429 above the limit."""

    def __init__(
        self,
        text: AsyncIterator[str] | AsyncIterator[bytes],
        *,
        media_type: str,
        caller: str,
        stream_limit: StreamLimit,
    ) -> None:
        super().__init__(text, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._caller = caller
        self._stream_limit = stream_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._stream_limit.take(self._caller):
            detail = f"you have reached the limit of {counted(self._stream_limit.most, 'open stream')}; close one first"
            raise HttpProblem("too-many", detail, wait_s=RETRY_AFTER_S)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream_limit.leave(self._caller)


async def stream_lines(listener: Listener, may_continue: MayContinue) -> AsyncIterator[bytes]:
    """Yield lines of a log as they are written, until the job ends or is deleted, or `may_continue` returns False.

    Waits while the store does not answer.
    """
    while not listener.ended and await may_continue():
        try:
            text = await listener.read()
        except StoreUnavailable:
            text = b""
        if text:
            yield text
        elif not listener.ended:
            await asyncio.sleep(EVERY_S)


async def stream_pieces(
    pieces: Iterator[bytes], readers: CapacityLimiter, may_continue: MayContinue
) -> AsyncIterator[bytes]:
    """Yield each piece, read by one of `readers`, to the last or until `may_continue` returns False."""
    while await may_continue():
        piece = await to_thread.run_sync(next, pieces, None, limiter=readers)
        if piece is None:
            return
        yield piece


async def stream_changes(
    tail: Tail, event_id: int, wanted: Callable[[EventNotice], bool], may_continue: MayContinue
) -> AsyncIterator[str]:
    """Yield the changes after an event as they happen, with heartbeats. Waits while the store does not answer.

    The first block and the heartbeats have an `id` and no `data`. They are not events; their `id` says from where to
    reconnect.
    """
    began = spoke = time.monotonic()
    yield f"retry: 2000\nid: {event_id}\n\n"
    while time.monotonic() < began + _LONGEST_S and await may_continue():
        try:
            found = tail.recall(event_id)
            events = await run_in_threadpool(tail.look, event_id) if found is None else found
        except StoreUnavailable:
            events = ()
        if events:
            event_id = events[-1].id
        text = "".join(render_change(event) for event in events if wanted(event))
        if not text and time.monotonic() >= spoke + _HEARTBEAT_S:
            text = f": still here\nid: {event_id}\n\n"
        if text:
            spoke = time.monotonic()
            yield text
        elif not events:
            await asyncio.sleep(_POLL_S)


def render_change(event: EventNotice) -> str:
    data = json.dumps(JobChange(job_id=event.job_id, kind=event.kind).model_dump())
    return f"id: {event.id}\nevent: job\ndata: {data}\n\n"
