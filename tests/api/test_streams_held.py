"""Open streams: their limit for each caller, and their end when the caller loses access."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts

from orchestrator.api import authorization
from orchestrator.api.app import create_app
from orchestrator.api.authorization import watch_access
from orchestrator.api.stream import Stream
from orchestrator.domain.access.identity import LOCAL
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.identity.stream_limit import StreamLimit
from tests.api.conftest import World
from tests.api.fakes import BASE_URL

PATIENCE_S = 60.0
STREAMS = ("/api/v1/events", "/api/v1/jobs/{}/events/stream", "/api/v1/jobs/{}/logs?follow=true")


class Held:
    """A stream that continues until `let_go` is set."""

    def __init__(self, limit: StreamLimit, caller: str) -> None:
        self.began, self.let_go = asyncio.Event(), asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.stream = Stream(self._text(), media_type="text/plain", caller=caller, stream_limit=limit)

    async def _text(self) -> AsyncIterator[str]:
        yield "begun"
        self.began.set()
        await self.let_go.wait()

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, receive: Callable[[], Awaitable[Any]]) -> None:
        await self.stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, self.send)


async def never() -> Any:
    await asyncio.Event().wait()


def test_an_ended_or_disconnected_stream_no_longer_counts() -> None:
    async def go_and_come() -> None:
        limit, gone = StreamLimit(2), asyncio.Event()

        async def leaves() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        first, second = Held(limit, "alice"), Held(limit, "alice")
        running = [asyncio.create_task(first.run(never)), asyncio.create_task(second.run(leaves))]
        await first.began.wait()
        await second.began.wait()
        assert not limit.take("alice")
        first.let_go.set()
        gone.set()
        await asyncio.gather(*running)
        assert [limit.take("alice") for _ in range(3)] == [True, True, False]

    asyncio.run(asyncio.wait_for(go_and_come(), PATIENCE_S))


@pytest.mark.parametrize("path", STREAMS)
def test_the_stream_limit_applies_to_each_caller(closed: World, path: str) -> None:
    alice, bob = closed.give("*=operator"), closed.give("*=viewer", name="bob")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(), headers=alice).json()["id"]
    limit = StreamLimit(1)
    assert limit.take("alice")
    identity = replace(closed.services.identity, stream_limit=limit)
    # A closing service ends each accepted stream at once.
    app = create_app(replace(closed.services, identity=identity, closing=lambda: True))
    refused, let_in = (ask(app, path.format(job_id), headers) for headers in (alice, bob))
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many")
    assert "limit of 1 open stream;" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 0
    assert let_in.status_code == 200
    assert limit.take("bob"), "the stream has ended and no longer counts"


def ask(app: FastAPI, path: str, headers: dict[str, str]) -> httpx.Response:
    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE_URL) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(asyncio.wait_for(get(), PATIENCE_S))


def a_request(world: World, job_id: str, headers: dict[str, str]) -> Request:
    """A request as the route of a followed log gets it."""
    path = "/api/v1/jobs/{job_id}/logs"
    (route,) = (each for each in iter_route_contexts(world.app.routes) if each.path == path)
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw, "app": world.app, "route": route}
    return Request({**scope, "path_params": {"job_id": job_id}, "query_string": b"", "client": ("127.0.0.1", 1)})


def asked(may_continue: Callable[[], Awaitable[bool]]) -> bool:
    async def ask_once() -> bool:
        return await may_continue()

    return asyncio.run(ask_once())


def test_a_stream_ends_when_its_callers_token_is_revoked(closed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "LOOK_AGAIN_S", 0.0)
    alice = closed.give("*=operator")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(), headers=alice).json()["id"]
    may_continue = watch_access(a_request(closed, job_id, alice), lambda: False)
    assert asked(may_continue)
    (token,) = closed.services.identity.tokens.listed(LOCAL)
    closed.services.identity.tokens.revoke(token.id, by=LOCAL)
    assert not asked(may_continue)


def test_the_caller_of_a_stream_is_checked_once_a_minute(closed: World) -> None:
    may_continue = watch_access(a_request(closed, "no-job", {}), lambda: False)
    assert asked(may_continue)


def test_a_store_that_does_not_answer_ends_no_stream(closed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "LOOK_AGAIN_S", 0.0)

    async def away(request: Request) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(authorization, "authorize", away)
    request = a_request(closed, "no-job", {})
    assert asked(watch_access(request, lambda: False))
    assert not asked(watch_access(request, lambda: True)), "a closing service ends its streams"
