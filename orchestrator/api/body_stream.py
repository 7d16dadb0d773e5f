"""The bytes of a request's body, within limits of size and time. Nothing is read before somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from orchestrator.api.errors import HttpProblem

BODY_S = 60.0  # for a whole body to arrive
_DRAINED_BYTES = 64 * 1024 * 1024  # of a body too long: read and forgotten, so that its sender gets the answer


async def read_head(request: Request, least: int) -> bytes:
    """The beginning of a body: at least so many bytes, or all there are. `read_body` returns them too. Raises
    HttpProblem 408."""
    head, chunks = b"", request.stream()
    async with _in_time():
        async for chunk in chunks:
            head += chunk
            if len(head) >= least:
                break
    request.state.begun_body = head, chunks
    return head


async def read_body(request: Request, limit: int) -> bytes:
    """Read a body of at most `limit` bytes, counted while it arrives. Raises HttpProblem 413, or 408 for one that takes
    too long: whoever sends a byte a minute must not hold a connection for days."""
    body = bytearray()
    size = 0
    async with _in_time():
        async for chunk in _chunks(request):
            size += len(chunk)
            if size <= limit:
                body += chunk
            elif size > _DRAINED_BYTES:
                break
    if size > limit:
        raise HttpProblem("too-large", f"the body is larger than {limit} bytes, the most that is accepted here")
    return bytes(body)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    head, rest = getattr(request.state, "begun_body", None) or (b"", request.stream())
    yield head
    async for chunk in rest:
        yield chunk


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError as error:
        raise HttpProblem("too-slow", f"the body did not arrive within {BODY_S:.0f} s") from error
