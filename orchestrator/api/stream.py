"""Streams. The only asynchronous handlers: they wait without holding a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from orchestrator.domain.errors import NotFound, StoreUnavailable
from orchestrator.logfollow import Follower

_POLL_S = 0.25


async def follow(follower: Follower, closing: Callable[[], bool]) -> AsyncIterator[str]:
    """Lines as they come, until the job rests, is gone, or the service closes. An outage of the store is waited out."""
    while not follower.ended and not closing():
        try:
            lines = await run_in_threadpool(follower.poll)
        except StoreUnavailable:
            lines = []
        except NotFound:
            return
        if lines:
            yield "".join(f"{line}\n" for line in lines)
        elif not follower.ended:
            await asyncio.sleep(_POLL_S)
