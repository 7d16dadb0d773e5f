"""The bytes of a request's body, within limits of size, time and room. Nothing is read before somebody asks for it.

What is left of a body that is refused is drained by the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from orchestrator.api.errors import HttpProblem
from orchestrator.api.room import WAIT_S, Claim

BODY_S = 60.0  # for a whole body to arrive
CLAIM = "orchestrator.claim"  # of the request's scope


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
    """Read a body of at most `limit` bytes, counted while it arrives. Raises HttpProblem: 413; 408 for one that takes
    too long, since whoever sends a byte a minute must not hold a connection for days; 429 and 503 where too many long
    bodies are in memory."""
    _require_fit(int(request.headers.get("content-length", 0)), limit)
    body = bytearray()
    async with _in_time():
        async for chunk in _chunks(request):
            _require_fit(len(body) + len(chunk), limit)
            _require_room(request, len(body) + len(chunk))
            body += chunk
    return bytes(body)


@asynccontextmanager
async def turn_to_parse(request: Request) -> AsyncIterator[None]:
    """One long body is parsed at a time."""
    claim: Claim = request.scope[CLAIM]
    async with claim.room.turn:
        yield


def _require_fit(size: int, limit: int) -> None:
    if size > limit:
        raise HttpProblem("too-large", f"the body is larger than {limit} bytes, the most that is accepted here")


def _require_room(request: Request, size: int) -> None:
    claim: Claim = request.scope[CLAIM]
    sender = _sender(request)
    if not claim.has_room(sender, size):
        raise HttpProblem("too-many", "you send too many long requests at one time; send this one again", wait_s=WAIT_S)
    if not claim.hold(sender, size):
        raise HttpProblem("busy", "too many long requests are being read; send this one again", wait_s=WAIT_S)


def _sender(request: Request) -> str:
    caller = getattr(request.state, "caller", None)
    return f"agent {getattr(request.state, 'attempt', '')}" if caller is None else f"caller {caller.name}"


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
