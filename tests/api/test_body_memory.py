"""Long bodies share limited memory. A request without free memory is refused, and the others continue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.api.app import create_app
from orchestrator.api.body_memory import SHORT_BYTES, BodyMemory, BodyUse
from orchestrator.api.documents import parse_json
from orchestrator.api.errors import HttpProblem
from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.validation import MAX_NODES, check_plain, parse_model, parse_spec
from tests.api.conftest import World
from tests.api.fakes import BASE_URL, Client
from tests.api.test_exhaustion import MOST_BYTES, peak

LONG = 10 * SHORT_BYTES
KIND = {"Content-Type": "application/json"}


class Crowd:
    """A service with memory for two long bodies, one of each caller."""

    def __init__(self, world: World) -> None:
        self.memory = BodyMemory(2 * LONG, LONG)
        self.app = create_app(replace(world.services, body_memory=self.memory))
        self.ends = asyncio.Event()

    async def send(self, headers: dict[str, str], *parts: bytes, waits: bool = False) -> httpx.Response:
        async def chunks() -> AsyncIterator[bytes]:
            for part in parts:
                yield part
            if waits:
                await self.ends.wait()

        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            return await client.post("/api/v1/plan", content=chunks(), headers={**headers, **KIND})

    async def held(self, size_bytes: int) -> None:
        async with asyncio.timeout(60):
            while self.memory.used.total() < size_bytes:
                await asyncio.sleep(0.01)


def a_spec(world: World, size: int) -> bytes:
    text = json.dumps(world.spec(run={"command": ["true"]}))
    return (text + " " * (size - len(text))).encode()


def test_a_long_body_without_free_memory_is_refused_with_retry_after(closed: World) -> None:
    alice, bob, carol = (closed.give("*=submitter", name=name) for name in ("alice", "bob", "carol"))
    spec = a_spec(closed, LONG // 2)

    async def meet() -> list[httpx.Response]:
        crowd = Crowd(closed)
        first = asyncio.create_task(crowd.send(alice, spec + b" " * (LONG - len(spec)), waits=True))
        await crowd.held(LONG)
        own = await crowd.send(alice, spec)
        second = asyncio.create_task(crowd.send(bob, spec + b" " * (LONG - len(spec)), waits=True))
        await crowd.held(2 * LONG)
        full, small = await crowd.send(carol, spec), await crowd.send(carol, a_spec(closed, SHORT_BYTES))
        crowd.ends.set()
        answers = [own, full, small, await first, await second, await crowd.send(carol, spec)]
        assert crowd.memory.free_bytes == crowd.memory.most_bytes
        return answers

    own, full, small, *others = asyncio.run(meet())
    assert (own.status_code, own.json()["type"], own.headers["retry-after"]) == (429, "/problems/too-many", "1")
    assert (full.status_code, full.json()["type"], full.headers["retry-after"]) == (503, "/problems/busy", "1")
    assert [each.status_code for each in (small, *others)] == [200] * 4


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 40_000)), max_size=40))
def test_the_memory_is_never_exceeded_and_is_always_released(moves: list[tuple[int, str, int]]) -> None:
    memory = BodyMemory(100_000, 60_000)
    uses = [BodyUse(memory) for _ in range(6)]
    senders, sizes = dict[int, str](), dict.fromkeys(range(6), 0)
    for index, sender, more in moves:
        size, own = sizes[index] + more, senders.setdefault(index, sender)
        if uses[index].may_hold(own, size) and uses[index].hold(own, size):
            sizes[index] = size
        else:
            uses[index].release()
            sizes[index] = 0
            del senders[index]
        assert memory.used.total() == sum(size for size in sizes.values() if size > SHORT_BYTES) <= memory.most_bytes
        assert all(used <= memory.most_of_one_bytes for used in memory.used.values())
    for use in uses:
        use.release()
    assert not memory.used


def test_a_body_with_too_large_a_content_length_is_not_read(closed: World) -> None:
    taken: list[bytes] = []
    headers = {**closed.give("*=submitter"), **KIND, "Content-Length": "9000000000"}
    client = Client(closed.app)
    answer = client.post("/api/v1/jobs", content=_lazily(taken), headers=headers)
    client.close()
    assert (answer.status_code, taken) == (413, [])


async def _lazily(taken: list[bytes]) -> AsyncIterator[bytes]:
    taken.append(b"{}")
    yield b"{}"


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip"])
def test_a_compressed_body_is_refused(world: World, encoding: str) -> None:
    answer = world.client.post("/api/v1/jobs", json=world.spec(), headers={"Content-Encoding": encoding})
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["detail"]


# Parsing


@pytest.mark.parametrize(
    "text",
    [
        "[" + "{}," * 2_000_000 + "{}]",
        "{" + '"":0,' * 1_000_000 + '"":0}',
        "[" * 1_000_000 + "1",
        "[" + '"\\"",' * 1_000_000 + "0]",
        "," * 1_000_000,
    ],
    ids=["objects", "keys", "depth", "texts", "commas"],
)
def test_json_of_very_many_values_is_refused_before_it_is_built(text: str) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidSpec, match="holds more than 200000 values"):
            parse_json(text)

    assert peak(refuse) < 1_000_000


@pytest.mark.parametrize("text", ['"' + '\\"' * 2_000_000, '"' + "," * 2_000_000 + "\\", '{"a' * 2])
def test_an_unterminated_string_is_searched_in_linear_time(text: str) -> None:
    """A naive search would start again at each quote."""
    with pytest.raises(HttpProblem, match="not JSON"):
        parse_json(text)


def test_brackets_and_commas_in_strings_are_not_counted_as_values() -> None:
    line = json.dumps({"loss": 1.0, "names": ["[", "{", ","]})
    document = {"progress": [line * 20_000, '\\",[{' * 100_000]}
    assert parse_json(json.dumps(document)) == document


def test_a_list_of_a_million_is_refused_without_building_pointers() -> None:
    million = [{}] * 1_000_000

    def refuse() -> None:
        (problem,) = check_plain({"a": million})
        assert problem.message == f"holds more than {MAX_NODES} values"

    assert peak(refuse) < 100_000


@pytest.mark.parametrize(
    "fields",
    [
        {"after": [1] * 190_000},
        {"labels": {f"k{number}": 1 for number in range(90_000)}},
        {f"k{n}": 1 for n in range(90_000)},
    ],
    ids=["items", "values", "keys"],
)
def test_a_hundred_thousand_wrong_fields_are_not_built(fields: dict[str, Any]) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidSpec, match="wrong fields"):
            parse_spec({"name": "demo", "run": {"command": ["true"]}, **fields})

    assert peak(refuse) < MOST_BYTES // 2


def test_a_list_where_an_object_is_wanted_is_one_problem() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_model(JobSpec, [{}] * 1000)
    assert len(caught.value.problems) == 1
