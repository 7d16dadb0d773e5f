"""Streams: answers without an end. They wait without holding a thread, and cost their caller one of its streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from orchestrator.api.errors import RETRY_AFTER_S, HttpProblem
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.identity.stream_limit import StreamLimit
from orchestrator.logs.feed import EVERY_S, Listener
from orchestrator.queries.tail import Tail
from orchestrator.store.records import Happening
from orchestrator.wire.job_views import JobChange

_POLL_S = 0.25
_HEARTBEAT_S = 15.0  # proxies break off what is silent for a minute
_LONGEST_S = 600.0  # then the browser comes again by itself, and is asked again who it is

GoesOn = Callable[[], Awaitable[bool]]  # asked again and again: whether there is still somebody to tell


class Stream(StreamingResponse):
    """One of the few that a caller may hold open. Sending it raises HttpProblem 429 where he has as many already."""

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
            detail = f"you hold as many streams open as one caller may ({self._stream_limit.most}); close one of them"
            raise HttpProblem("too-many", detail, wait_s=RETRY_AFTER_S)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream_limit.leave(self._caller)


async def follow(listener: Listener, goes_on: GoesOn) -> AsyncIterator[bytes]:
    """Lines as they come, until the job rests or is gone, or nobody is to be told. An outage of the store is waited
    out."""
    while not listener.ended and await goes_on():
        try:
            text = await listener.hear()
        except StoreUnavailable:
            text = b""
        if text:
            yield text
        elif not listener.ended:
            await asyncio.sleep(EVERY_S)


async def tell(tail: Tail, event_id: int, wanted: Callable[[Happening], bool], goes_on: GoesOn) -> AsyncIterator[str]:
    """Changes as they come, behind an event; a sign of life now and then. An outage of the store is waited out.

    The first block and signs of life have an `id` and no `data`: they are no events, and say where to reconnect from.
    """
    began = spoke = time.monotonic()
    yield f"retry: 2000\nid: {event_id}\n\n"
    while time.monotonic() < began + _LONGEST_S and await goes_on():
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


def render_change(event: Happening) -> str:
    data = json.dumps(JobChange(job_id=event.job_id, kind=event.kind).model_dump())
    return f"id: {event.id}\nevent: job\ndata: {data}\n\n"
