"""Read the bytes of a request's body, within limits of size, time and memory.

A body is not read before a route asks for it. The connection discards the rest of a refused body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from orchestrator.api.body_memory import WAIT_S, BodyUse
from orchestrator.api.errors import HttpProblem

BODY_S = 60.0  # the time in which a whole body must arrive
BODY_USE = "orchestrator.body_use"  # a key of the request's scope


async def read_head(request: Request, least: int) -> bytes:
    """Read at least `least` bytes of a body, or all of a shorter one. `read_body` returns them again.

    Raises HttpProblem 408.
    """
    head, chunks = b"", request.stream()
    async with _in_time():
        async for chunk in chunks:
            head += chunk
            if len(head) >= least:
                break
    request.state.begun_body = head, chunks
    return head


async def read_body(request: Request, limit: int) -> bytes:
    """Read a body of at most `limit` bytes, counted while they arrive.

    Raises HttpProblem: 400 if Content-Length is not a number; 413 for a longer body; 408 for a body that takes longer
    than BODY_S, because a client that sends a byte a minute must not hold a connection for days; 429 if the sender has
    too many long bodies in memory; 503 if all senders together have.
    """
    length = request.headers.get("content-length", "0")
    if not length.isdecimal():
        raise HttpProblem("malformed", f"Content-Length is {length[:100]!r}, must be a number")
    _require_fit(int(length[:20]), limit)
    body = bytearray()
    async with _in_time():
        async for chunk in _chunks(request):
            _require_fit(len(body) + len(chunk), limit)
            _require_memory(request, len(body) + len(chunk))
            body += chunk
    return bytes(body)


@asynccontextmanager
async def turn_to_parse(request: Request) -> AsyncIterator[None]:
    """Wait until no other long body is parsed."""
    use: BodyUse = request.scope[BODY_USE]
    async with use.memory.turn:
        yield


def _require_fit(size: int, limit: int) -> None:
    if size > limit:
        raise HttpProblem("too-large", f"the body is larger than the limit of {limit} bytes")


def _require_memory(request: Request, size: int) -> None:
    use: BodyUse = request.scope[BODY_USE]
    sender = _sender(request)
    if not use.may_hold(sender, size):
        raise HttpProblem("too-many", "you send too many long requests at the same time; retry this one", wait_s=WAIT_S)
    if not use.hold(sender, size):
        raise HttpProblem("busy", "too many long requests are being read; retry this one", wait_s=WAIT_S)


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
