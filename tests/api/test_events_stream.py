"""Streams of changes: their content and access, where they start, and that followers share one query."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.api import stream
from orchestrator.api.stream import stream_changes
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.queries.tail import Tail
from orchestrator.store.records import EventNotice
from tests.api.conftest import World
from tests.blocks import faults_of, parse_blocks, schema_of_blocks
from tests.builders import NOW


class Reader:
    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.asked = 0
        self.broken = False

    def newest(self) -> int:
        return self.count

    def after(self, event_id: int, *, limit: int) -> list[EventNotice]:
        self.asked += 1
        if self.broken:
            raise StoreUnavailable("away")
        return [an_event(number) for number in range(event_id + 1, self.count + 1)][:limit]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def an_event(number: int) -> EventNotice:
    return EventNotice(id=number, job_id=f"job-{number % 2}", project="p", kind="k", at=NOW)


def ids(events: Any) -> list[int]:
    return [event.id for event in events]


def test_many_followers_share_one_query(time: Time) -> None:
    reader = Reader(10)
    tail = Tail(reader, every_s=1, monotonic=time)
    assert tail.recall(10) is None
    assert ids(tail.look(10)) == []
    reader.count, time.now = 12, 1.0
    assert [ids(tail.look(10)) for _ in range(100)] == [[11, 12]] * 100
    assert ids(tail.recall(11) or ()) == [12]
    assert reader.asked == 2


def test_a_follower_that_is_far_behind_reads_the_store(time: Time) -> None:
    reader = Reader(10)
    tail = Tail(reader, every_s=1, kept=3, monotonic=time)
    tail.look(10)
    assert tail.recall(4) is None
    assert ids(tail.look(4)) == [5, 6, 7, 8, 9, 10]
    reader.count, time.now = 20, 1.0
    assert ids(tail.look(17)) == [18, 19, 20]
    assert tail.recall(16) is None, "only three are kept"
    assert ids(tail.look(16)) == [17, 18, 19, 20]


def test_a_follower_after_a_long_pause_gets_new_events_at_once(time: Time) -> None:
    reader = Reader(10)
    tail = Tail(reader, every_s=1, monotonic=time)
    tail.look(10)
    reader.count, time.now = 100_000, 3600.0
    assert ids(tail.look(100_000)) == []
    reader.count, time.now = 100_002, 3601.0
    assert ids(tail.look(100_000)) == [100_001, 100_002]
    assert ids(tail.recall(100_001) or ()) == [100_002]
    assert ids(tail.look(10))[:2] == [11, 12], "missed events are in the store"


@pytest.fixture
def time() -> Time:
    return Time()


def follow(tail: Tail, begin: int, parts: int, wanted: Callable[[EventNotice], bool] = lambda _: True) -> list[str]:
    """The first `parts` parts of a stream."""

    async def collect() -> list[str]:
        found: list[str] = []

        async def may_continue() -> bool:
            return len(found) < parts

        told = stream_changes(tail, begin, wanted, may_continue)
        while (part := await anext(told, None)) is not None:
            found.append(part)
        return found

    return asyncio.run(asyncio.wait_for(collect(), 20))


def test_a_stream_continues_after_the_last_event_with_each_event_once() -> None:
    tail = Tail(Reader(6), every_s=0)
    first, changes = follow(tail, 3, 2)
    assert first == "retry: 2000\nid: 3\n\n"
    assert changes.count("event: job") == 3
    lines = changes.splitlines()
    assert (lines[0], json.loads(lines[2].removeprefix("data: "))) == ("id: 4", {"job_id": "job-0", "kind": "k"})


def test_a_stream_has_only_the_wanted_events() -> None:
    _, changes = follow(Tail(Reader(6), every_s=0), 0, 2, lambda event: event.job_id == "job-1")
    assert [line for line in changes.splitlines() if line.startswith("id")] == ["id: 1", "id: 3", "id: 5"]


STREAMS = ("/api/v1/events", "/api/v1/jobs/{job_id}/events/stream")


@pytest.mark.parametrize("path", STREAMS)
def test_all_blocks_of_a_stream_match_the_schema(world: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.0)
    reader = Reader(6)
    behind = Tail(reader, every_s=0, kept=2)  # most events are read from the store
    text = "".join(follow(behind, 0, 3, lambda event: event.job_id == "job-1"))
    assert ": still here" in text
    blocks = list(parse_blocks(text.split("\n")[:-1]))
    assert [sorted(block) for block in blocks] == [["id", "retry"], *[["data", "event", "id"]] * 3, ["id"]]
    schema = schema_of_blocks(world.client.get("/openapi.json").json(), path)
    assert [faults_of(block, schema) for block in blocks] == [[]] * 5


INVALID_BLOCKS: list[dict[str, Any]] = [
    {},
    {"retry": 2000},
    {"id": ""},
    {"id": "x"},
    {"id": "1", "retry": "2000"},
    {"id": "1", "event": "job"},
    {"id": "1", "data": '{"job_id": "a", "kind": "k"}'},
    {"id": "1", "event": "message", "data": '{"job_id": "a", "kind": "k"}'},
    {"event": "job", "data": '{"job_id": "a", "kind": "k"}'},
    {"id": "1", "event": "job", "data": '{"job_id": "a"}'},
    {"id": "1", "event": "job", "data": '{"kind": "k"}'},
    {"id": "1", "event": "job", "data": '{"job_id": null, "kind": "k"}'},
    {"id": "1", "event": "job", "data": "[]"},
    {"id": "1", "event": "job", "data": "null"},
]


@pytest.mark.parametrize("path", STREAMS)
def test_the_schema_of_a_block_refuses_invalid_blocks(world: World, path: str) -> None:
    """Shows that the schema in the test above can fail."""
    schema = schema_of_blocks(world.client.get("/openapi.json").json(), path)
    for block in INVALID_BLOCKS:
        assert faults_of(block, schema) != [], block


def test_a_stream_survives_an_outage_of_the_store() -> None:
    reader = Reader(2)
    reader.broken = True
    tail = Tail(reader, every_s=0)

    async def collect() -> list[str]:
        found: list[str] = []

        async def may_continue() -> bool:
            return len(found) < 2

        async for part in stream_changes(tail, 1, lambda _: True, may_continue):
            found.append(part)
            asyncio.get_running_loop().call_later(0.3, setattr, reader, "broken", False)
        return found

    assert "id: 2" in asyncio.run(asyncio.wait_for(collect(), 20))[1]


def test_an_invalid_last_event_id_is_refused(world: World) -> None:
    for path in ("/api/v1/jobs/unknown-1/events/stream",):
        assert world.client.get(path).status_code == 404
    answer = world.client.get("/api/v1/events", headers={"Last-Event-ID": "x"})
    assert answer.status_code == 422


def test_a_stream_has_only_events_of_the_callers_projects(closed: World) -> None:
    for project in ("research", "vision"):
        admin = {"Authorization": "Bearer " + "the first admin's token"}
        closed.client.post("/api/v1/jobs", json=closed.spec(project=project), headers=admin)
    told = asyncio.run(first_change(closed, closed.give("vision=viewer")))
    assert told.count("event: job") == 1


async def first_change(world: World, headers: dict[str, str]) -> str:
    """The second part of a stream, read by plain ASGI because the test client waits for the end of an answer."""
    parts: list[str] = []
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            parts.append(message["body"].decode())
        if len(parts) >= 2:
            enough.set()

    sent = {"host": "localhost", "last-event-id": "0", **headers}
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    place = {"path": "/api/v1/events", "raw_path": b"/api/v1/events", "query_string": b"", "root_path": ""}
    ends = {"client": ("127.0.0.1", 1), "server": ("x", 1)}
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    await asyncio.wait_for(world.app({**scope, **place, **ends, "headers": pairs}, receive, send), 20)
    return parts[1]
